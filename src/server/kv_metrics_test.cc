// SPDX-License-Identifier: Apache-2.0
#include "server/kv_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <regex>
#include <set>
#include <sstream>

namespace kvik::server {
namespace {

using Labels = std::map<std::string, std::string>;
using ::testing::HasSubstr;
using ::testing::Not;

// All fields that are 8 bytes, from `first` to the end of the struct, get numbers of their own.
template <typename Stats>
std::vector<int64_t> Number(Stats& stats, size_t first_byte, size_t end_byte, int64_t from) {
  std::vector<int64_t> numbers;
  for (size_t at = first_byte; at < end_byte; at += sizeof(int64_t)) {
    numbers.push_back(from + 7 * static_cast<int64_t>(numbers.size()));
    std::memcpy(reinterpret_cast<std::byte*>(&stats) + at, &numbers.back(), sizeof(int64_t));
  }
  return numbers;
}

std::set<double> Values(const std::string& text) {
  std::set<double> values;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty() && line[0] != '#') {
      values.insert(std::stod(line.substr(line.rfind(' ') + 1)));
    }
  }
  return values;
}

// Counts as they are, times in seconds.
void ExpectShown(const std::string& text, const std::vector<int64_t>& numbers) {
  const std::set<double> values = Values(text);
  const auto shown = [&](double number) {
    const auto at = values.lower_bound(number * (1 - 1e-9));
    return at != values.end() && *at <= number * (1 + 1e-9);
  };
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto number = static_cast<double>(numbers[i]);
    EXPECT_TRUE(shown(number) || shown(number * 1e-6)) << "field " << i << " is not exported";
  }
}

TEST(KvMetrics, SourcesThatAreGoneAreNotShown) {
  KvMetrics metrics(Labels{{"engine", "0"}});
  KvReadings readings;
  for (const char* name : {"pool a", "peer b"}) {
    readings.sources.emplace_back().name = name;
    readings.sources.back().loads = 5;
  }
  EXPECT_THAT(metrics.Render(readings), HasSubstr("source=\"peer b\""));
  readings.sources.pop_back();
  readings.sources.back().loads = 7;
  const std::string text = metrics.Render(readings);
  EXPECT_THAT(text, Not(HasSubstr("peer b")));
  EXPECT_THAT(text, HasSubstr("kvik:kv_source_loads_total{engine=\"0\",source=\"pool a\"} 7\n"));
}

// A field that is added and not exported fails here.
TEST(KvMetrics, EveryNumberThatIsCountedIsExported) {
  KvMetrics metrics(Labels{{"engine", "0"}});
  KvReadings readings;
  connector::ConnectorCounters& counters = readings.connector.emplace();
  const auto of_connector =
      Number(counters, 0, offsetof(connector::ConnectorCounters, compute_pace), 100'000);
  counters.compute_pace = 0.625;
  const auto of_node =
      Number(readings.node.emplace(), 0, sizeof(connector::ObjectNodeCounters), 200'000);
  const auto of_port = Number(readings.port.emplace(), 0, sizeof(transfer::EndpointStats), 300'000);
  store::StoreStats& store = readings.store.emplace();
  const auto of_store = Number(store, sizeof store.tiers, sizeof store, 400'000);
  store::TierStats& tier = store.tiers.emplace_back();
  // Asked for are hits and misses together.
  const auto of_tier =
      Number(tier, offsetof(store::TierStats, objects), sizeof(store::TierStats), 500'000);
  connector::SourceReport& source = readings.sources.emplace_back();
  source = {.name = "peer 10.0.0.1:7",
            .goodput_bytes_per_s = 600'000,
            .loads = 600'007,
            .failures = 600'014,
            .wire_bytes = 600'021,
            .choices = {{{"kivi-4", true}, 600'028}},
            .link = transfer::PeerStats()};
  const auto of_link =
      Number(source.link->connection, 0, sizeof(transfer::ConnectionStats), 700'000);
  source.link->connects = 800'000;
  source.link->failed_connects = 800'007;

  const std::string text = metrics.Render(readings);
  ExpectShown(text, of_connector);
  ExpectShown(text, {625'000});
  ExpectShown(text, of_node);
  ExpectShown(text, of_port);
  ExpectShown(text, of_store);
  for (const int64_t number : of_tier) {
    if (number != tier.misses) {
      ExpectShown(text, {number});
    }
  }
  ExpectShown(text, {tier.hits + tier.misses});
  ExpectShown(text, {600'000, 600'007, 600'014, 600'021, 600'028});
  ExpectShown(text, of_link);
  ExpectShown(text, {800'000, 800'007});
  EXPECT_THAT(text, HasSubstr("kvik:kv_profile_choices_total{encoded=\"on_request\",engine=\"0\","
                              "profile=\"kivi-4\",source=\"peer 10.0.0.1:7\"} 600028"));
}

TEST(KvMetrics, NamesSayWhatKindTheyAreAndInWhichUnit) {
  KvMetrics metrics(Labels{});
  KvReadings readings;
  readings.connector.emplace();
  readings.node.emplace();
  readings.port.emplace();
  readings.store.emplace().tiers.emplace_back();
  readings.sources.emplace_back().link.emplace();
  std::istringstream lines(metrics.Render(readings));
  int types = 0;
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, std::regex("# TYPE (\\S+) (counter|gauge)"))) {
      ++types;
      EXPECT_EQ(match[2] == "counter", match[1].str().ends_with("_total")) << line;
      EXPECT_FALSE(std::regex_search(line, std::regex("_(us|ms|micros)(_| )"))) << line;
    }
  }
  EXPECT_GT(types, 60);
}

TEST(KvMetrics, TiersOfOneKindStayApartAndTotalsNeverFall) {
  KvMetrics metrics(Labels{});
  KvReadings readings;
  store::StoreStats& store = readings.store.emplace();
  store.tiers.resize(3);
  store.tiers[0].kind = store::TierKind::kMemory;
  store.tiers[1].kind = store.tiers[2].kind = store::TierKind::kRemote;
  store.tiers[1].puts = 5;
  store.tiers[2].puts = 9;
  std::string text = metrics.Render(readings);
  EXPECT_EQ(metrics.Render(readings), text);
  EXPECT_THAT(text, HasSubstr("kvik:kv_store_puts_total{tier=\"remote\"} 5"));
  EXPECT_THAT(text, HasSubstr("kvik:kv_store_puts_total{tier=\"remote-2\"} 9"));
  store.tiers[1].puts = 3;  // whoever counts there has started again
  text = metrics.Render(readings);
  EXPECT_THAT(text, HasSubstr("kvik:kv_store_puts_total{tier=\"remote\"} 5"));
}

}  // namespace
}  // namespace kvik::server
