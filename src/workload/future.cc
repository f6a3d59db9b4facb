// SPDX-License-Identifier: Apache-2.0
#include "workload/future.h"

#include <cstring>

#include "base/rng.h"

namespace kvik::workload {

kv::ContentKey KeyOf(uint64_t trace_block) {
  kv::ContentKey key;
  const uint64_t mixed = Rng(trace_block).Next();  // ids count from zero; digests are uniform
  std::memcpy(key.hash.bytes.data(), &mixed, sizeof mixed);
  std::memcpy(key.hash.bytes.data() + sizeof mixed, &trace_block, sizeof trace_block);
  return key;
}

Future::Future(const Trace& trace) : trace_(trace) {
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    for (const uint64_t block : trace.requests[i].blocks) {
      uses_[KeyOf(block).Digest()].requests.push_back(static_cast<int32_t>(i));
    }
  }
}

int64_t Future::NextUse(uint64_t content) {
  const auto it = uses_.find(content);
  if (it == uses_.end()) {
    return kNever;
  }
  Uses& uses = it->second;
  while (uses.next < uses.requests.size() && uses.requests[uses.next] <= now_) {
    ++uses.next;
  }
  return uses.next < uses.requests.size() ? uses.requests[uses.next] : kNever;
}

}  // namespace kvik::workload
