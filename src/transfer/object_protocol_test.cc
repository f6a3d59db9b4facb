// SPDX-License-Identifier: Apache-2.0
// The object protocol between two endpoints: over real sockets with their own threads, and over the
// loopback driven by hand with a manual clock.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "transfer/loopback.h"
#include "transfer/object_client.h"
#include "transfer/object_server.h"
#include "transfer/testing/fake_pool.h"

namespace kvik::transfer {
namespace {

using testing::BytesOf;
using testing::FakePool;
using testing::KeyOf;

constexpr int64_t kSecond = 1'000'000;

EndpointOptions Options(Role role) {
  EndpointOptions options;
  options.hello.role = role;
  options.hello.model_fingerprint = 42;
  options.hello.kv_layout = "bf16 layers=2 heads=1 dim=8";
  options.hello.block_size_tokens = 16;
  return options;
}

// A pool behind a TCP socket and a client of it.
class TcpPair : public ::testing::Test {
 protected:
  void SetUp() override {
    server_handler_ = MakeObjectServer(pool_);
    auto server = Endpoint::Create(Options(Role::kPool), clock_, server_handler_.get());
    ASSERT_TRUE(server) << server.error().message;
    server_ = std::move(*server);
    auto address = server_->Listen("127.0.0.1:0");
    ASSERT_TRUE(address) << address.error().message;
    address_ = *address;
    auto endpoint = Endpoint::Create(Options(Role::kDecode), clock_, nullptr);
    ASSERT_TRUE(endpoint) << endpoint.error().message;
    endpoint_ = std::move(*endpoint);
    ObjectClient::Options options;
    options.address = "kvik://" + address_;
    client_ = ObjectClient::Create(*endpoint_, options);
  }
  [[nodiscard]] int64_t In(int64_t us) const { return clock_.NowMicros() + us; }

  SystemClock clock_;
  FakePool pool_;
  std::unique_ptr<StreamHandler> server_handler_;
  std::unique_ptr<Endpoint> server_;
  std::string address_;
  std::unique_ptr<Endpoint> endpoint_;
  std::unique_ptr<ObjectClient> client_;
};

TEST_F(TcpPair, PutLookupGetRemove) {
  const std::vector<std::byte> bytes = BytesOf(1, 3'000'001);
  PutRequest put;
  put.info.key = KeyOf(1);
  put.info.num_blocks = 16;
  put.info.size_bytes = bytes.size();
  auto stored = client_->PutWait(put, SharedBytes::Own(bytes), In(20 * kSecond));
  ASSERT_TRUE(stored) << stored.error().message;
  // Again: the pool has it and takes no bytes.
  stored = client_->PutWait(put, SharedBytes::Own(bytes), In(20 * kSecond));
  ASSERT_TRUE(stored) << stored.error().message;

  LookupRequest lookup;
  lookup.domain = KeyOf(1).last_block.content.domain;
  lookup.hashes = {KeyOf(0).last_block.content.hash, KeyOf(1).last_block.content.hash};
  auto found = client_->LookupWait(lookup, In(20 * kSecond));
  ASSERT_TRUE(found) << found.error().message;
  ASSERT_EQ(found->size(), 1U);
  EXPECT_EQ((*found)[0].hash_index, 1U);
  EXPECT_EQ((*found)[0].info.key, KeyOf(1));
  EXPECT_EQ((*found)[0].info.size_bytes, bytes.size());

  auto got = client_->GetWait(KeyOf(1), In(20 * kSecond));
  ASSERT_TRUE(got) << got.error().message;
  EXPECT_EQ(*got, bytes);

  const auto removed =
      client_->RemoveWait(RemoveRequest{{KeyOf(1), KeyOf(2)}, ""}, In(20 * kSecond));
  ASSERT_TRUE(removed);
  EXPECT_EQ(*removed, 1U);
  got = client_->GetWait(KeyOf(1), In(20 * kSecond));
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(client_->stats().connects, 1U);
}

TEST_F(TcpPair, CallsAreAnsweredFailedOrDropped) {
  const SharedBytes large = SharedBytes::Own(BytesOf(5, 200'000));
  auto answer = client_->CallWait(1, large, In(20 * kSecond));
  ASSERT_TRUE(answer) << answer.error().message;
  EXPECT_TRUE(std::ranges::equal(answer->span(), large.span()));
  answer = client_->CallWait(404, large, In(20 * kSecond));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::kNotFound);
  answer = client_->CallWait(500, large, In(20 * kSecond));
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().code, ErrorCode::kInternal);
}

TEST_F(TcpPair, NobodyListens) {
  server_->Close();
  const auto got = client_->GetWait(KeyOf(1), In(20 * kSecond));
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, ErrorCode::kUnavailable);
}

TEST_F(TcpPair, AnotherModelIsRefusedWithTheReason) {
  EndpointOptions options = Options(Role::kDecode);
  options.hello.model_fingerprint = 43;
  auto endpoint = Endpoint::Create(options, clock_, nullptr);
  ASSERT_TRUE(endpoint);
  const auto connection = (*endpoint)->Connect(address_, In(20 * kSecond));
  ASSERT_FALSE(connection);
  EXPECT_EQ(connection.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(connection.error().message.find("fingerprint"), std::string::npos)
      << connection.error().message;
}

}  // namespace
}  // namespace kvik::transfer
