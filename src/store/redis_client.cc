// SPDX-License-Identifier: Apache-2.0
#include "store/redis_client.h"

#include <errno.h>
#include <hiredis/hiredis.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "base/format.h"
#include "base/mutex.h"

namespace kvik::store {
namespace {

constexpr size_t kSlots = 16384;
constexpr size_t kMaxIovecs = 512;  // of one sendmsg
constexpr int kMaxRounds = 6;       // redirections of one command, and the map's own refresh

struct Free {
  void operator()(redisContext* context) const { redisFree(context); }
};
using Connection = std::unique_ptr<redisContext, Free>;
// The connections of one call, by address.
using Session = std::map<std::string, Connection>;

// Commands in Redis's protocol: what is small is gathered, what is large stays where it is.
class Outgoing {
 public:
  void Add(const std::vector<RedisArg>& args) {
    Text(Format("*%zu\r\n", args.size()));
    for (const RedisArg& arg : args) {
      Text(Format("$%zu\r\n", arg.size()));
      for (const std::string_view part : arg.parts) {
        if (part.size() < kGathered) {
          Text(part);
        } else {
          pieces_.push_back(part);
          fresh_ = true;
        }
      }
      Text("\r\n");
    }
  }
  // Valid until the next Add.
  [[nodiscard]] std::vector<iovec> Parts() const {
    std::vector<iovec> parts;
    parts.reserve(pieces_.size() + texts_.size());
    size_t text = 0;
    for (const std::string_view piece : pieces_) {
      const std::string_view bytes =
          piece.data() == nullptr ? std::string_view(texts_[text++]) : piece;
      parts.push_back({const_cast<char*>(bytes.data()), bytes.size()});
    }
    return parts;
  }

 private:
  static constexpr size_t kGathered = 16384;
  void Text(std::string_view text) {
    if (fresh_) {
      pieces_.emplace_back();  // stands for the next of texts_
      texts_.emplace_back();
      fresh_ = false;
    }
    texts_.back().append(text);
  }
  std::vector<std::string_view> pieces_;
  std::vector<std::string> texts_;
  bool fresh_ = true;  // the next text begins a piece of its own
};

const redisReply* Raw(const std::shared_ptr<void>& raw) {
  return static_cast<const redisReply*>(raw.get());
}

timeval TimevalOf(int64_t us) {
  us = std::max<int64_t>(us, 1000);  // zero would mean for ever
  return timeval{.tv_sec = us / 1'000'000, .tv_usec = us % 1'000'000};
}

struct Url {
  std::vector<std::string> addresses;  // "host:port" or "/path"
  std::string user;
  std::string password;
  std::string db;
};

Result<Url> ParseUrl(const std::string& text) {
  Url url;
  constexpr std::string_view kUnix = "unix://";
  constexpr std::string_view kRedis = "redis://";
  if (text.rfind(kUnix, 0) == 0 && text.size() > kUnix.size() && text[kUnix.size()] == '/') {
    url.addresses.push_back(text.substr(kUnix.size()));
    return url;
  }
  const Error wrong = Err(ErrorCode::kInvalidInput,
                          "a Redis URL is redis://[user:password@]host:port[,host:port...][/db] or "
                          "unix:///path");
  if (text.rfind(kRedis, 0) != 0) {
    return wrong;
  }
  std::string rest = text.substr(kRedis.size());
  if (const size_t at = rest.rfind('@'); at != std::string::npos) {
    const std::string who = rest.substr(0, at);
    rest = rest.substr(at + 1);
    const size_t colon = who.find(':');
    if (colon == std::string::npos) {
      return wrong;
    }
    url.user = who.substr(0, colon);
    url.password = who.substr(colon + 1);
  }
  if (const size_t slash = rest.find('/'); slash != std::string::npos) {
    url.db = rest.substr(slash + 1);
    rest = rest.substr(0, slash);
    if (url.db.find_first_not_of("0123456789") != std::string::npos) {
      return wrong;
    }
  }
  for (size_t begin = 0; begin <= rest.size();) {
    const size_t end = std::min(rest.find(',', begin), rest.size());
    const std::string address = rest.substr(begin, end - begin);
    const size_t colon = address.rfind(':');
    int port = 0;
    if (colon == 0 || colon == std::string::npos ||
        std::from_chars(address.data() + colon + 1, address.data() + address.size(), port).ptr !=
            address.data() + address.size() ||
        port < 1 || port > 65535) {
      return wrong;
    }
    url.addresses.push_back(address);
    begin = end + 1;
  }
  return url;
}

constexpr std::array<uint16_t, 256> MakeCrc16Table() {
  std::array<uint16_t, 256> table = {};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i << 8;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc & 0x8000U) != 0 ? (crc << 1) ^ 0x1021U : crc << 1;
    }
    table[i] = static_cast<uint16_t>(crc);
  }
  return table;
}
constexpr std::array<uint16_t, 256> kCrc16 = MakeCrc16Table();

bool StartsWith(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

Error ErrorOfReply(std::string_view text) {
  ErrorCode code = ErrorCode::kInternal;
  if (StartsWith(text, "OOM")) {
    code = ErrorCode::kExhausted;
  }
  for (const char* start : {"CLUSTERDOWN", "TRYAGAIN", "LOADING", "MASTERDOWN", "MISCONF", "BUSY",
                            "READONLY", "NOAUTH", "WRONGPASS", "MOVED", "ASK"}) {
    if (StartsWith(text, start)) {
      code = ErrorCode::kUnavailable;
    }
  }
  return Err(code, "redis: %.*s", static_cast<int>(std::min<size_t>(text.size(), 200)),
             text.data());
}

}  // namespace

uint16_t RedisSlot(std::string_view key) {
  if (const size_t open = key.find('{'); open != std::string_view::npos) {
    const size_t close = key.find('}', open + 1);
    if (close != std::string_view::npos && close > open + 1) {
      key = key.substr(open + 1, close - open - 1);
    }
  }
  uint32_t crc = 0;
  for (const char c : key) {
    crc = ((crc << 8) & 0xFFFFU) ^ kCrc16[((crc >> 8) ^ static_cast<uint8_t>(c)) & 0xFF];
  }
  return static_cast<uint16_t>(crc % kSlots);
}

bool RedisReply::is_nil() const { return Raw(raw_)->type == REDIS_REPLY_NIL; }
int64_t RedisReply::integer() const {
  return Raw(raw_)->type == REDIS_REPLY_INTEGER ? Raw(raw_)->integer : 0;
}
std::string_view RedisReply::text() const {
  const redisReply* raw = Raw(raw_);
  if (raw->type != REDIS_REPLY_STRING && raw->type != REDIS_REPLY_STATUS &&
      raw->type != REDIS_REPLY_ERROR) {
    return {};
  }
  return {raw->str, static_cast<size_t>(raw->len)};
}
std::vector<RedisReply> RedisReply::elements() const {
  std::vector<RedisReply> elements;
  const redisReply* raw = Raw(raw_);
  if (raw->type == REDIS_REPLY_ARRAY) {
    for (size_t i = 0; i < raw->elements; ++i) {
      elements.emplace_back(std::shared_ptr<void>(raw_, raw->element[i]));
    }
  }
  return elements;
}

struct RedisClient::State {
  State(RedisOptions the_options, Url the_url, const Clock& the_clock)
      : options(std::move(the_options)), url(std::move(the_url)), clock(the_clock) {}

  struct Node {
    int64_t backoff_us = 0;
    int64_t not_before_us = 0;  // of the next attempt to connect
  };

  const RedisOptions options;
  const Url url;
  const Clock& clock;
  Mutex mutex;
  std::vector<Session> idle KVIK_GUARDED_BY(mutex);
  std::map<std::string, Node> nodes KVIK_GUARDED_BY(mutex);
  // Owner of each slot; empty: unknown. A server that is no cluster owns all of them.
  std::vector<std::string> owners KVIK_GUARDED_BY(mutex);
  bool map_is_old KVIK_GUARDED_BY(mutex) = true;

  Session TakeSession() KVIK_EXCLUDES(mutex) {
    MutexLock lock(mutex);
    if (idle.empty()) {
      return {};
    }
    Session session = std::move(idle.back());
    idle.pop_back();
    return session;
  }
  void GiveBack(Session session) KVIK_EXCLUDES(mutex) {
    MutexLock lock(mutex);
    idle.push_back(std::move(session));
  }

  void Failed(const std::string& address) KVIK_EXCLUDES(mutex) {
    MutexLock lock(mutex);
    Node& node = nodes[address];
    node.backoff_us =
        std::clamp(2 * node.backoff_us, options.min_backoff_us, options.max_backoff_us);
    node.not_before_us = clock.NowMicros() + node.backoff_us;
    map_is_old = true;
  }
  void Reached(const std::string& address) KVIK_EXCLUDES(mutex) {
    MutexLock lock(mutex);
    nodes[address] = Node{};
  }

  // What went wrong with a connection; forgets it.
  Error Drop(Session& session, const std::string& address) KVIK_EXCLUDES(mutex) {
    const Connection& connection = session[address];
    const bool late = connection != nullptr && connection->err == REDIS_ERR_IO &&
                      (errno == EAGAIN || errno == EWOULDBLOCK || errno == ETIMEDOUT);
    const Error error =
        late ? Err(ErrorCode::kTimeout, "redis %s did not answer in time", address.c_str())
             : Err(ErrorCode::kUnavailable, "redis %s: %s", address.c_str(),
                   connection == nullptr ? "no memory" : connection->errstr);
    session.erase(address);
    Failed(address);
    return error;
  }

  Result<std::shared_ptr<void>> Receive(Session& session, const std::string& address,
                                        int64_t deadline_us) KVIK_EXCLUDES(mutex) {
    const Connection& connection = session[address];
    const int64_t left_us = deadline_us - clock.NowMicros();
    if (left_us <= 0) {
      session.erase(address);  // answers that come later belong to nobody
      return Err(ErrorCode::kTimeout, "the deadline of a call to redis passed");
    }
    void* reply = nullptr;
    if (redisSetTimeout(connection.get(), TimevalOf(left_us)) != REDIS_OK ||
        redisGetReply(connection.get(), &reply) != REDIS_OK || reply == nullptr) {
      return Drop(session, address);
    }
    return std::shared_ptr<void>(reply, [](void* raw) { freeReplyObject(raw); });
  }

  // A command of the connection itself, whose answer must not be an error.
  Result<std::shared_ptr<void>> Say(Session& session, const std::string& address,
                                    const std::vector<RedisArg>& args, int64_t deadline_us)
      KVIK_EXCLUDES(mutex) {
    Outgoing out;
    out.Add(args);
    KVIK_TRY(Send(session, address, out, deadline_us));
    KVIK_ASSIGN(std::shared_ptr<void> reply, Receive(session, address, deadline_us));
    if (Raw(reply)->type == REDIS_REPLY_ERROR) {
      return ErrorOfReply({Raw(reply)->str, static_cast<size_t>(Raw(reply)->len)});
    }
    return reply;
  }

  // Everything of `out`, before anybody waits for an answer.
  Result<void> Send(Session& session, const std::string& address, const Outgoing& out,
                    int64_t deadline_us) KVIK_EXCLUDES(mutex) {
    std::vector<iovec> parts = out.Parts();
    size_t first = 0;
    while (first < parts.size()) {
      const int64_t left_us = deadline_us - clock.NowMicros();
      if (left_us <= 0) {
        session.erase(address);  // half a command may be out
        return Err(ErrorCode::kTimeout, "the deadline of a call to redis passed");
      }
      redisContext* context = session[address].get();
      if (redisSetTimeout(context, TimevalOf(left_us)) != REDIS_OK) {
        return Drop(session, address);
      }
      msghdr message = {};
      message.msg_iov = parts.data() + first;
      message.msg_iovlen = std::min<size_t>(parts.size() - first, kMaxIovecs);
      ssize_t sent = ::sendmsg(context->fd, &message, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) {
        continue;
      }
      if (sent < 0) {
        const bool late = errno == EAGAIN || errno == EWOULDBLOCK;
        const std::string why = std::strerror(errno);
        session.erase(address);
        Failed(address);
        return late ? Err(ErrorCode::kTimeout, "redis %s takes nothing in time", address.c_str())
                    : Err(ErrorCode::kUnavailable, "redis %s: %s", address.c_str(), why.c_str());
      }
      for (; first < parts.size() && static_cast<size_t>(sent) >= parts[first].iov_len; ++first) {
        sent -= static_cast<ssize_t>(parts[first].iov_len);
      }
      if (sent > 0) {
        parts[first].iov_base = static_cast<char*>(parts[first].iov_base) + sent;
        parts[first].iov_len -= static_cast<size_t>(sent);
      }
    }
    return {};
  }

  Result<void> Connect(Session& session, const std::string& address, int64_t deadline_us)
      KVIK_EXCLUDES(mutex) {
    if (const auto found = session.find(address);
        found != session.end() && found->second != nullptr && found->second->err == 0) {
      return {};
    }
    {
      MutexLock lock(mutex);
      if (clock.NowMicros() < nodes[address].not_before_us) {
        return Err(ErrorCode::kUnavailable, "redis %s was not reachable a moment ago",
                   address.c_str());
      }
    }
    const int64_t left_us = deadline_us - clock.NowMicros();
    if (left_us <= 0) {
      return Err(ErrorCode::kTimeout, "the deadline of a call to redis passed");
    }
    const timeval timeout = TimevalOf(std::min(left_us, options.connect_timeout_us));
    Connection connection;
    if (address[0] == '/') {
      connection.reset(redisConnectUnixWithTimeout(address.c_str(), timeout));
    } else {
      const size_t colon = address.rfind(':');
      connection.reset(redisConnectWithTimeout(address.substr(0, colon).c_str(),
                                               std::stoi(address.substr(colon + 1)), timeout));
    }
    const bool failed = connection == nullptr || connection->err != 0;
    session[address] = std::move(connection);
    if (failed) {
      return Drop(session, address);
    }
    session[address]->reader->maxbuf = 0;  // keeps its buffer: values are large
    if (!url.password.empty()) {
      std::vector<RedisArg> auth = {"AUTH"};
      if (!url.user.empty()) {
        auth.emplace_back(url.user);
      }
      auth.emplace_back(url.password);
      KVIK_TRY(Say(session, address, auth, deadline_us));
    }
    if (!url.db.empty() && url.db != "0") {
      KVIK_TRY(Say(session, address, {"SELECT", url.db}, deadline_us));
    }
    Reached(address);
    return {};
  }

  // Who owns which slot, from the first node that tells.
  Result<void> RefreshMap(Session& session, int64_t deadline_us) KVIK_EXCLUDES(mutex) {
    std::vector<std::string> addresses;
    {
      MutexLock lock(mutex);
      if (!map_is_old) {
        return {};
      }
      for (const auto& [address, node] : nodes) {
        if (node.backoff_us == 0) {
          addresses.push_back(address);
        }
      }
    }
    addresses.insert(addresses.end(), url.addresses.begin(), url.addresses.end());
    std::optional<Error> last;
    for (const std::string& address : addresses) {
      if (auto connected = Connect(session, address, deadline_us); !connected) {
        last = connected.error();
        continue;
      }
      Outgoing out;
      out.Add({"CLUSTER", "SLOTS"});
      if (auto sent = Send(session, address, out, deadline_us); !sent) {
        last = sent.error();
        continue;
      }
      auto reply = Receive(session, address, deadline_us);
      if (!reply) {
        last = reply.error();
        continue;
      }
      std::vector<std::string> map = ParseMap(RedisReply(*reply), address);
      if (map.empty()) {
        last = Err(ErrorCode::kUnavailable, "redis %s knows no owner of any slot", address.c_str());
        continue;
      }
      MutexLock lock(mutex);
      owners = std::move(map);
      map_is_old = false;
      return {};
    }
    return *last;
  }
  static std::vector<std::string> ParseMap(const RedisReply& reply, const std::string& from) {
    if (Raw(reply.owner())->type == REDIS_REPLY_ERROR) {
      return std::vector<std::string>(kSlots, from);  // no cluster
    }
    std::vector<std::string> map;
    for (const RedisReply& range : reply.elements()) {
      const auto parts = range.elements();
      if (parts.size() < 3) {
        continue;
      }
      const auto node = parts[2].elements();
      const int64_t begin = parts[0].integer();
      const int64_t end = parts[1].integer();
      if (node.size() < 2 || begin < 0 || begin > end || end >= static_cast<int64_t>(kSlots)) {
        continue;
      }
      std::string host(node[0].text());
      if (host.empty()) {
        host = from.substr(0, from.rfind(':'));  // a node that does not know its own address
      }
      map.resize(kSlots);
      for (int64_t slot = begin; slot <= end; ++slot) {
        map[static_cast<size_t>(slot)] = host + ":" + std::to_string(node[1].integer());
      }
    }
    return map;
  }

  struct Pending {
    size_t index = 0;
    std::string address;
    bool asking = false;
  };

  // One round: everything out, then everything in. What is redirected comes back.
  std::vector<Pending> Round(Session& session, std::span<const RedisCommand> commands,
                             const std::vector<Pending>& pending, int64_t deadline_us,
                             std::vector<std::optional<Result<RedisReply>>>& results)
      KVIK_EXCLUDES(mutex) {
    std::map<std::string, std::vector<Pending>> by_node;
    for (const Pending& command : pending) {
      by_node[command.address].push_back(command);
    }
    std::map<std::string, Error> unreached;
    for (const auto& [address, list] : by_node) {
      auto sent = Connect(session, address, deadline_us);
      if (sent) {
        Outgoing out;
        for (const Pending& command : list) {
          if (command.asking) {
            out.Add({"ASKING"});
          }
          out.Add(commands[command.index].args);
        }
        sent = Send(session, address, out, deadline_us);
      }
      if (!sent) {
        unreached.emplace(address, sent.error());
      }
    }
    std::vector<Pending> again;
    for (const auto& [address, list] : by_node) {
      const auto failed = unreached.find(address);
      std::optional<Error> error;
      if (failed != unreached.end()) {
        error = failed->second;
      }
      for (const Pending& command : list) {
        if (!error && command.asking) {
          if (auto ok = Receive(session, address, deadline_us); !ok) {
            error = ok.error();
          }
        }
        if (error) {
          results[command.index].emplace(*error);
          continue;
        }
        auto reply = Receive(session, address, deadline_us);
        if (!reply) {
          error = reply.error();
          results[command.index].emplace(*error);
          continue;
        }
        RedisReply answer(std::move(*reply));
        if (Raw(answer.owner())->type != REDIS_REPLY_ERROR) {
          results[command.index].emplace(std::move(answer));
          continue;
        }
        const std::string_view text = answer.text();
        results[command.index].emplace(ErrorOfReply(text));
        if (auto redirected = Redirection(text, address)) {
          redirected->index = command.index;
          again.push_back(std::move(*redirected));
        }
      }
    }
    return again;
  }

  // "MOVED slot host:port", "ASK slot host:port".
  std::optional<Pending> Redirection(std::string_view text, const std::string& from)
      KVIK_EXCLUDES(mutex) {
    const bool moved = StartsWith(text, "MOVED ");
    if (!moved && !StartsWith(text, "ASK ")) {
      return std::nullopt;
    }
    const size_t space = text.rfind(' ');
    const size_t colon = text.rfind(':');
    if (colon == std::string_view::npos || colon < space) {
      return std::nullopt;
    }
    Pending pending;
    pending.asking = !moved;
    pending.address = std::string(text.substr(space + 1));
    int port = 0;
    const std::string_view digits = text.substr(colon + 1);
    if (std::from_chars(digits.data(), digits.data() + digits.size(), port).ptr !=
            digits.data() + digits.size() ||
        port < 1 || port > 65535) {
      return std::nullopt;
    }
    if (colon == space + 1) {
      pending.address.insert(0, from.substr(0, from.rfind(':')));
    }
    if (moved) {
      const size_t digit = text.find_first_of("0123456789");
      size_t slot = kSlots;
      std::from_chars(text.data() + digit, text.data() + text.size(), slot);
      MutexLock lock(mutex);
      if (slot < owners.size()) {
        owners[slot] = pending.address;
      }
      map_is_old = true;
    }
    return pending;
  }

  [[nodiscard]] int64_t EndOf(int64_t deadline_us) const {
    return std::min(deadline_us, clock.NowMicros() + options.call_timeout_us);
  }
};

Result<std::unique_ptr<RedisClient>> RedisClient::Create(const RedisOptions& options,
                                                         const Clock& clock) {
  if (options.connect_timeout_us <= 0 || options.call_timeout_us <= 0 ||
      options.min_backoff_us <= 0 || options.max_backoff_us < options.min_backoff_us) {
    return Err(ErrorCode::kInvalidInput, "timeouts and backoffs of Redis are positive");
  }
  KVIK_ASSIGN(Url url, ParseUrl(options.url));
  return std::unique_ptr<RedisClient>(
      new RedisClient(std::make_unique<State>(options, std::move(url), clock)));
}

RedisClient::RedisClient(std::unique_ptr<State> state) : state_(std::move(state)) {}
RedisClient::~RedisClient() = default;

std::vector<Result<RedisReply>> RedisClient::Run(std::span<const RedisCommand> commands,
                                                 int64_t deadline_us) {
  const int64_t end_us = state_->EndOf(deadline_us);
  Session session = state_->TakeSession();
  std::vector<std::optional<Result<RedisReply>>> results(commands.size());
  std::vector<State::Pending> pending;
  // Without a map that is right the old one still serves for most slots.
  const auto mapped = state_->RefreshMap(session, end_us);
  {
    MutexLock lock(state_->mutex);
    for (size_t i = 0; i < commands.size(); ++i) {
      const uint16_t slot = RedisSlot(commands[i].key);
      if (slot < state_->owners.size() && !state_->owners[slot].empty()) {
        pending.push_back({i, state_->owners[slot], false});
      } else {
        results[i].emplace(mapped ? Err(ErrorCode::kUnavailable, "nobody owns slot %u", slot)
                                  : mapped.error());
      }
    }
  }
  for (int round = 0; round < kMaxRounds && !pending.empty(); ++round) {
    pending = state_->Round(session, commands, pending, end_us, results);
  }
  state_->GiveBack(std::move(session));
  std::vector<Result<RedisReply>> all;
  all.reserve(results.size());
  for (auto& result : results) {
    all.push_back(std::move(*result));
  }
  return all;
}

Result<std::vector<RedisReply>> RedisClient::RunOnAll(
    const std::vector<std::vector<std::string>>& args_of, int64_t deadline_us) {
  const int64_t end_us = state_->EndOf(deadline_us);
  Session session = state_->TakeSession();
  std::vector<std::string> primaries;
  {
    MutexLock lock(state_->mutex);
    primaries = state_->owners;
  }
  std::sort(primaries.begin(), primaries.end());
  primaries.erase(std::unique(primaries.begin(), primaries.end()), primaries.end());
  primaries.erase(std::remove(primaries.begin(), primaries.end(), ""), primaries.end());
  if (primaries.size() != args_of.size()) {
    return Err(ErrorCode::kUnavailable, "the primaries of redis have changed");
  }
  std::vector<RedisReply> replies;
  for (size_t i = 0; i < primaries.size(); ++i) {
    KVIK_TRY(state_->Connect(session, primaries[i], end_us));
    const std::vector<RedisArg> args(args_of[i].begin(), args_of[i].end());
    KVIK_ASSIGN(auto reply, state_->Say(session, primaries[i], args, end_us));
    replies.emplace_back(std::move(reply));
  }
  state_->GiveBack(std::move(session));
  return replies;
}

Result<size_t> RedisClient::CountPrimaries(int64_t deadline_us) {
  Session session = state_->TakeSession();
  const auto mapped = state_->RefreshMap(session, state_->EndOf(deadline_us));
  state_->GiveBack(std::move(session));
  KVIK_TRY(mapped);
  MutexLock lock(state_->mutex);
  std::vector<std::string> primaries = state_->owners;
  std::sort(primaries.begin(), primaries.end());
  primaries.erase(std::unique(primaries.begin(), primaries.end()), primaries.end());
  primaries.erase(std::remove(primaries.begin(), primaries.end(), ""), primaries.end());
  return primaries.size();
}

}  // namespace kvik::store
