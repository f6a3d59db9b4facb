// SPDX-License-Identifier: Apache-2.0
// connector/scratch_pool.h: scratch of threads that encode and decode, handed from task to task.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "connector/chunk_codec.h"

namespace kvik::connector {

// Thread-safe. As many as were ever in use at once.
class ScratchPool {
 public:
  // Gives its scratch back at the end of its life.
  class Loan {
   public:
    Loan(ScratchPool& pool, std::unique_ptr<CodecScratch> scratch)
        : pool_(pool), scratch_(std::move(scratch)) {}
    ~Loan() { pool_.Return(std::move(scratch_)); }
    Loan(const Loan&) = delete;
    Loan& operator=(const Loan&) = delete;
    CodecScratch& operator*() { return *scratch_; }

   private:
    ScratchPool& pool_;
    std::unique_ptr<CodecScratch> scratch_;
  };

  // The pool outlives the loan.
  [[nodiscard]] Loan Take() KVIK_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      if (!free_.empty()) {
        auto scratch = std::move(free_.back());
        free_.pop_back();
        return {*this, std::move(scratch)};
      }
    }
    return {*this, std::make_unique<CodecScratch>()};
  }

 private:
  void Return(std::unique_ptr<CodecScratch> scratch) KVIK_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    free_.push_back(std::move(scratch));
  }

  Mutex mutex_;
  std::vector<std::unique_ptr<CodecScratch>> free_ KVIK_GUARDED_BY(mutex_);
};

}  // namespace kvik::connector
