// SPDX-License-Identifier: Apache-2.0
#include "app/load_runner.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <optional>
#include <thread>

#include "base/mutex.h"
#include "workload/load_schedule.h"

namespace kvik::app {
namespace {

using workload::DueCall;
using workload::LoadSchedule;
using workload::PlannedCall;
using workload::PlannedMessage;
using workload::RequestRecord;
using workload::TokenRun;

class Runner {
 public:
  Runner(const BenchPlan& plan, const std::vector<TokenId>& alphabet, const ForcedOutputs& forced,
         const LoadRunOptions& options, const Clock& clock)
      : plan_(plan),
        alphabet_(alphabet),
        forced_(forced),
        options_(options),
        clock_(clock),
        begin_us_(clock.NowMicros()),
        conversations_(plan.load.sessions.size()),
        progress_(clock,
                  {.label = options.label, .total = plan.load.calls(), .mode = options.progress}),
        schedule_(plan.load, {.begin_us = begin_us_,
                              .starts_s = plan.starts_s,
                              .concurrency = plan.concurrency,
                              .speedup = options.speedup}) {
    size_t records = 0;
    for (const workload::PlannedSession& session : plan.load.sessions) {
      first_record_.push_back(records);
      records += session.calls.size();
    }
    records_.resize(records);
  }

  LoadOutcome Run() {
    {
      MutexLock lock(mutex_);
      AddWorker();
    }
    // Workers add workers while there are calls, so a joined one may have left another behind.
    for (size_t i = 0;; ++i) {
      std::thread worker;
      {
        MutexLock lock(mutex_);
        if (i == workers_.size()) {
          break;
        }
        worker = std::move(workers_[i]);
      }
      worker.join();
    }
    {
      MutexLock lock(mutex_);
      progress_.Finish();
    }
    LoadOutcome outcome;
    int64_t first_us = std::numeric_limits<int64_t>::max();
    int64_t last_us = 0;
    for (const RequestRecord& record : records_) {
      if (!record.warm_up) {
        first_us = std::min(first_us, record.planned_us);
        last_us = std::max(last_us, record.planned_us + record.end_us);
      }
    }
    outcome.wall_us = std::max(last_us - first_us, int64_t{0});
    outcome.records = std::move(records_);
    return outcome;
  }

 private:
  void AddWorker() KVIK_REQUIRES(mutex_) {
    workers_.emplace_back([this] { Work(); });
  }

  void Work() {
    // A URL that cannot be used was refused before the load began.
    const std::unique_ptr<BenchClient> client = BenchClient::Create(options_.target).value();
    MutexLock lock(mutex_);
    while (!schedule_.finished()) {
      const std::optional<DueCall> due = schedule_.Take(clock_.NowMicros());
      if (!due) {
        WaitForWork();
        continue;
      }
      if (waiting_ == 0 && workers_.size() < static_cast<size_t>(options_.max_connections)) {
        AddWorker();  // takes the next call while this one runs
      }
      mutex_.Unlock();
      Send(*client, *due);
      mutex_.Lock();
      schedule_.OnAnswer(due->session, clock_.NowMicros());
      progress_.Update(++answered_);
      work_.NotifyAll();
    }
  }

  void WaitForWork() KVIK_REQUIRES(mutex_) {
    ++waiting_;
    const int64_t next_us = schedule_.next_due_us();
    if (next_us == LoadSchedule::kNever) {
      work_.Wait(mutex_);
    } else {
      work_.WaitUntil(mutex_,
                      std::chrono::steady_clock::time_point(std::chrono::microseconds(next_us)));
    }
    --waiting_;
  }

  // Only one worker has a call of a session at a time, so its record and conversation are this
  // worker's for now.
  void Send(BenchClient& client, const DueCall& due) {
    const workload::PlannedSession& session = plan_.load.sessions[due.session];
    const PlannedCall& call = session.calls[due.call];
    RequestRecord& record = records_[first_record_[due.session] + due.call];
    record.session = static_cast<int32_t>(due.session);
    record.turn = static_cast<int32_t>(due.call);
    record.warm_up = record.session < options_.warmup_sessions;
    record.planned_us = due.planned_us - begin_us_;

    BenchRequest request;
    request.max_tokens = call.max_tokens;
    request.forced = Forced(record, call);
    request.session = options_.session_prefix + std::to_string(due.session);
    if (options_.hints) {
      request.will_continue = due.call + 1 < session.calls.size();
    }
    if (!options_.salt.empty()) {
      request.cache_salt =
          options_.salt + "-" + std::to_string(due.session) + "-" + std::to_string(due.call);
    }
    std::vector<PlannedMessage>& conversation = conversations_[due.session];
    if (const auto* messages = std::get_if<std::vector<PlannedMessage>>(&call.prompt)) {
      conversation.insert(conversation.end(), messages->begin(), messages->end());
      request.prompt = conversation;
    } else if (const auto* runs = std::get_if<std::vector<TokenRun>>(&call.prompt)) {
      std::vector<TokenId> tokens;
      for (const TokenRun& run : *runs) {
        workload::AppendTokens(run, alphabet_, tokens);
      }
      request.prompt = std::move(tokens);
    } else {
      request.prompt = std::get<std::string>(call.prompt);
    }
    record.sent_us = clock_.NowMicros() - begin_us_;
    client.Call(request, clock_, due.planned_us, record);
    if (record.token_ids.empty()) {
      record.token_ids = std::move(request.forced);
    }
    conversation.push_back({"assistant", record.text});
  }

  [[nodiscard]] std::vector<TokenId> Forced(const RequestRecord& record,
                                            const PlannedCall& call) const {
    const auto it = forced_.find({record.session, record.turn});
    if (it != forced_.end()) {
      return it->second;
    }
    std::vector<TokenId> tokens;
    if (const auto* run = std::get_if<TokenRun>(&call.output);
        run != nullptr && options_.force_outputs) {
      workload::AppendTokens(*run, alphabet_, tokens);
    }
    return tokens;
  }

  const BenchPlan& plan_;
  const std::vector<TokenId>& alphabet_;
  const ForcedOutputs& forced_;
  const LoadRunOptions& options_;
  const Clock& clock_;
  const int64_t begin_us_;
  std::vector<size_t> first_record_;  // of each session
  std::vector<RequestRecord> records_;
  std::vector<std::vector<PlannedMessage>> conversations_;

  Mutex mutex_;
  CondVar work_;
  Progress progress_ KVIK_GUARDED_BY(mutex_);
  LoadSchedule schedule_ KVIK_GUARDED_BY(mutex_);
  std::vector<std::thread> workers_ KVIK_GUARDED_BY(mutex_);
  int32_t waiting_ KVIK_GUARDED_BY(mutex_) = 0;
  uint64_t answered_ KVIK_GUARDED_BY(mutex_) = 0;
};

}  // namespace

LoadOutcome RunLoad(const BenchPlan& plan, const std::vector<TokenId>& alphabet,
                    const ForcedOutputs& forced, const LoadRunOptions& options,
                    const Clock& clock) {
  return Runner(plan, alphabet, forced, options, clock).Run();
}

}  // namespace kvik::app
