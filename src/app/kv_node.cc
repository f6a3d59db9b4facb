// SPDX-License-Identifier: Apache-2.0
#include "app/kv_node.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "app/default_kv_store.h"
#include "app/kv_link.h"
#include "app/machine_speeds.h"
#include "app/profile_folder.h"
#include "base/fnv.h"
#include "base/log.h"
#include "connector/peer_source.h"
#include "eval/library_binding.h"
#include "eval/model_facts.h"
#include "kv/block_hasher.h"

namespace kvik::app {
namespace {

constexpr int32_t kChunkTokens = 256;
constexpr int kIoThreads = 2;

// What peers must agree on besides the tokens of a block. Blocks that are named in another way
// would never be found.
std::string LayoutText(const kv::KvGeometry& geometry, kv::HashAlgorithm hash) {
  char text[128];
  std::snprintf(text, sizeof(text), "%s layers=%d heads=%d dim=%d hash=%s",
                geometry.dtype == kv::KvDtype::kBf16 ? "bf16" : "f32", geometry.num_layers,
                geometry.num_kv_heads, geometry.head_dim, kv::HashAlgorithmName(hash));
  return text;
}

Result<std::shared_ptr<const connector::ProfileSet>> LoadProfiles(const KvNodeOptions& options,
                                                                  const Runtime& runtime) {
  std::shared_ptr<codec::ProfileLibrary> library;
  if (!options.profiles_path.empty()) {
    KVIK_ASSIGN(codec::ProfileLibrary loaded, LoadProfileLibrary(options.profiles_path));
    if (const Result<void> bound = eval::BindLibrary(*runtime.model, loaded); !bound) {
      return bound.error().Wrap(options.profiles_path);
    }
    library = std::make_shared<codec::ProfileLibrary>(std::move(loaded));
  }
  return connector::ProfileSet::Create(eval::ModelFactsOf(*runtime.model), std::move(library),
                                       kChunkTokens, runtime.isa);
}

// "host" and port of "host:port" or "[::1]:port".
server::KvAddress SplitAddress(const std::string& address) {
  server::KvAddress split;
  const size_t colon = address.rfind(':');
  split.host = address.substr(0, colon);
  if (split.host.size() > 2 && split.host.front() == '[' && split.host.back() == ']') {
    split.host = split.host.substr(1, split.host.size() - 2);
  }
  split.port = static_cast<int32_t>(std::strtol(address.c_str() + colon + 1, nullptr, 10));
  return split;
}

}  // namespace

Result<std::unique_ptr<KvNode>> KvNode::Create(const KvNodeOptions& options, const Runtime& runtime,
                                               const Clock& clock,
                                               std::shared_ptr<store::EventSink> store_events) {
  const kv::KvGeometry& geometry = runtime.memory.geometry;
  if (geometry.dtype != kv::KvDtype::kBf16) {
    return Err(ErrorCode::kUnsupported,
               "KV of --kv-cache-dtype f32 cannot be stored or moved: take bf16");
  }
  std::unique_ptr<KvNode> node(new KvNode);
  node->profile_ = options.profile;
  KVIK_ASSIGN(node->profiles_, LoadProfiles(options, runtime));
  if (options.store.by_default) {
    node->store_ = OpenDefaultKvStore(
        {.root = DefaultKvStoreRoot(),
         .model_path = runtime.model_path,
         .weights = runtime.hash.model,
         .chunk_bytes = geometry.bytes_per_token() * static_cast<uint64_t>(kChunkTokens),
         .spare_bytes = runtime.memory.spare_bytes(),
         .max_encodings = options.store.max_encodings},
        clock, std::move(store_events));
  } else if (options.store.any()) {
    KVIK_ASSIGN(node->store_, OpenKvStore(options.store, clock, std::move(store_events)));
  }
  connector::ConnectorOptions kv;
  kv.speeds = MachineSpeedsOf(*node->profiles_, runtime, clock,
                              {.folder = DefaultSpeedsFolder(), .threads = kIoThreads});

  node->node_ = connector::ObjectNode::Create({}, node->store_.get(), clock);
  node->objects_ = transfer::MakeObjectServer(*node->node_);
  const kv::BlockHasher hasher(runtime.hash);
  transfer::EndpointOptions endpoint;
  transfer::Hello& hello = endpoint.hello;
  hello.role = options.role;
  hello.model_fingerprint = Fnv1a(runtime.hash.model);
  hello.domain = hasher.Domain({});
  hello.numerics = kv::NumericsTag::FromDescription(runtime.model->numerics_tag());
  hello.kv_layout = LayoutText(geometry, runtime.hash.algorithm);
  hello.block_size_tokens = static_cast<uint16_t>(geometry.block_size_tokens);
  hello.extra = connector::HelloExtra(kv.speeds);
  KVIK_TRY(UseLink(options.link, clock, endpoint));
  KVIK_ASSIGN(node->endpoint_, transfer::Endpoint::Create(endpoint, clock, node->objects_.get()));

  kv.kv_profile = options.profile;
  if (options.store.by_default && options.profile == connector::kAdaptive) {
    // For this process alone: near enough that smaller ones would not pay for being made.
    kv.store_profiles = {connector::kLosslessName};
  }
  kv.default_workload = options.default_workload;
  kv.failure_policy = options.failure_policy;
  kv.pools = options.pools;
  kv.root = hasher.root();
  kv.compute = runtime.cost;
  kv.step_tokens = runtime.step_tokens;
  kv.io_threads = kIoThreads;
  connector::ConnectorParts parts;
  parts.clock = &clock;
  parts.profiles = node->profiles_;
  parts.store = node->store_.get();
  parts.endpoint = node->endpoint_.get();
  parts.node = node->node_.get();
  KVIK_ASSIGN(node->connector_, connector::Connector::Create(std::move(kv), parts));
  if (!options.listen.empty()) {
    KVIK_ASSIGN(const std::string address, node->endpoint_->Listen(options.listen));
    node->address_ = SplitAddress(address);
    LogInfo("peers get KV at kvik://%s", address.c_str());
  }
  return node;
}

KvNode::~KvNode() {
  if (endpoint_ != nullptr) {
    endpoint_->Close();
  }
}

Result<void> KvNode::CheckQuality(const kv::MinQuality& quality) const {
  return connector::CheckQuality(*profiles_, profile_, quality);
}

server::KvReadings KvNode::Readings() const {
  server::KvReadings readings;
  readings.connector = connector_->counters();
  readings.sources = connector_->sources();
  readings.node = node_->counters();
  readings.port = endpoint_->stats();
  if (store_ != nullptr) {
    readings.store = store_->stats();
  }
  return readings;
}

void KvNode::Finish() {
  connector_->Flush();
  if (store_ != nullptr) {
    store_->Flush();
  }
}

}  // namespace kvik::app
