// SPDX-License-Identifier: Apache-2.0
// text/jinja_builtins.h: the filters, tests and global functions of templates, by name.
#pragma once

#include <string_view>

#include "base/result.h"
#include "text/jinja_object.h"
#include "text/jinja_runtime.h"
#include "text/jinja_value.h"

namespace kvik::text {

// value|name(args).
using JinjaFilter = Result<JinjaValue> (*)(JinjaRuntime& runtime, const JinjaValue& value,
                                           const JinjaArgs& args);
// value is name(args).
using JinjaTest = Result<bool> (*)(JinjaRuntime& runtime, const JinjaValue& value,
                                   const JinjaArgs& args);

struct JinjaNamedFilter {
  std::string_view name;
  JinjaFilter filter;
};
struct JinjaNamedTest {
  std::string_view name;
  JinjaTest test;
};

// nullptr if there is none of that name.
JinjaFilter FindJinjaFilter(std::string_view name);
JinjaTest FindJinjaTest(std::string_view name);
// The parts FindJinjaFilter looks in: text (jinja_text_filters.cc), sequences
// (jinja_sequence_filters.cc).
JinjaFilter FindJinjaTextFilter(std::string_view name);
JinjaFilter FindJinjaSequenceFilter(std::string_view name);

// The global variable `name`: range, dict, namespace, cycler, joiner, raise_exception,
// strftime_now; Undefined if there is none.
JinjaValue FindJinjaGlobal(std::string_view name);

}  // namespace kvik::text
