// SPDX-License-Identifier: Apache-2.0
// text/jinja_loop.h: the variable `loop` of a running for loop.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/jinja_ast.h"
#include "text/jinja_interpreter.h"
#include "text/jinja_object.h"
#include "text/jinja_ops.h"

namespace kvik::text {

// Walks the loop's iterable, skips what its `if` refuses, and knows what comes next.
class JinjaLoop : public JinjaCallable, public std::enable_shared_from_this<JinjaLoop> {
 public:
  // `scope`: where the loop stands.
  JinjaLoop(JinjaInterpreter& interpreter, const JinjaStatement& statement,
            std::shared_ptr<JinjaScope> scope, JinjaCursor cursor, int iterable_nesting,
            int64_t depth0)
      : JinjaCallable(iterable_nesting + 1),
        interpreter_(interpreter),
        statement_(statement),
        scope_(std::move(scope)),
        cursor_(std::move(cursor)),
        depth0_(depth0) {}

  // Moves on to the next item, nullopt at the end.
  Result<std::optional<JinjaValue>> Next(JinjaRuntime& runtime);
  // Forgets the values that loop.changed() holds.
  void Forget() { changed_.reset(); }

  [[nodiscard]] std::string TypeName() const override { return "LoopContext"; }
  Result<std::optional<JinjaValue>> Attribute(JinjaRuntime& runtime,
                                              std::string_view name) override;
  Result<std::string> Repr(JinjaRuntime& runtime) const override;
  Result<std::optional<size_t>> Length(JinjaRuntime& runtime) override;
  // loop(iterable): the body once more, over inner values.
  Result<JinjaValue> Call(JinjaRuntime& runtime, JinjaArgs args) override;

 private:
  // The next item from the iterable that passes the filter.
  Result<std::optional<JinjaValue>> Fetch(JinjaRuntime& runtime);
  // The item after the current one.
  Result<std::optional<JinjaValue>> Peek(JinjaRuntime& runtime);
  Result<int64_t> Size(JinjaRuntime& runtime);
  Result<JinjaValue> Method(JinjaRuntime& runtime, std::string_view name);
  Result<JinjaValue> Cycle(const JinjaArgs& args) const;
  Result<JinjaValue> Changed(JinjaRuntime& runtime, const JinjaArgs& args);

  JinjaInterpreter& interpreter_;
  const JinjaStatement& statement_;
  const std::shared_ptr<JinjaScope> scope_;
  JinjaCursor cursor_;
  const int64_t depth0_;
  int64_t index0_ = -1;
  std::optional<int64_t> size_;
  std::vector<JinjaValue> fetched_;  // read ahead, from `fetched_at_`
  size_t fetched_at_ = 0;
  std::optional<JinjaValue> before_;
  std::optional<JinjaValue> current_;
  std::optional<JinjaValue> changed_;
};

}  // namespace kvik::text
