// SPDX-License-Identifier: Apache-2.0
// str() and repr() of values.
#include <charconv>
#include <cmath>
#include <cstdio>

#include "text/jinja_ops.h"
#include "text/jinja_unicode.h"

namespace kvik::text {
namespace {

// Writes repr(value) step by step, so that a small template cannot ask for a huge text at once.
class ReprWriter {
 public:
  explicit ReprWriter(JinjaRuntime& runtime) : runtime_(runtime) {}

  Result<void> Write(const JinjaValue& value) {
    const JinjaDepth depth(runtime_);
    if (!depth.ok() || !runtime_.Step()) return runtime_.Exhausted();
    switch (value.kind()) {
      case JinjaValue::Kind::kUndefined:
        return Append("Undefined");
      case JinjaValue::Kind::kNone:
        return Append("None");
      case JinjaValue::Kind::kBool:
        return Append(value.boolean() ? "True" : "False");
      case JinjaValue::Kind::kInt:
        return Append(std::to_string(value.integer()));
      case JinjaValue::Kind::kFloat:
        return Append(JinjaFloatRepr(value.floating()));
      case JinjaValue::Kind::kString: {
        const std::string quoted = JinjaStringRepr(value.text());
        return Append(value.is_markup() ? "Markup(" + quoted + ")" : quoted);
      }
      case JinjaValue::Kind::kList:
        return WriteItems(value.items(), "[", "]");
      case JinjaValue::Kind::kTuple:
        return WriteItems(value.items(), "(", value.items().size() == 1 ? ",)" : ")");
      case JinjaValue::Kind::kDict:
        return WriteDict(value.dict());
      case JinjaValue::Kind::kObject: {
        KVIK_ASSIGN(const std::string repr, value.object().Repr(runtime_));
        return Append(repr);
      }
    }
    return {};
  }

  std::string Take() { return std::move(out_); }

 private:
  Result<void> Append(std::string_view text) {
    if (!runtime_.Use(text.size())) return runtime_.Exhausted();
    out_.append(text);
    return {};
  }

  Result<void> WriteItems(const std::vector<JinjaValue>& items, std::string_view open,
                          std::string_view close) {
    KVIK_TRY(Append(open));
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) KVIK_TRY(Append(", "));
      KVIK_TRY(Write(items[i]));
    }
    return Append(close);
  }

  Result<void> WriteDict(const JinjaDict& dict) {
    KVIK_TRY(Append("{"));
    for (size_t i = 0; i < dict.size(); ++i) {
      if (i > 0) KVIK_TRY(Append(", "));
      KVIK_TRY(Write(dict.entries()[i].first));
      KVIK_TRY(Append(": "));
      KVIK_TRY(Write(dict.entries()[i].second));
    }
    return Append("}");
  }

  JinjaRuntime& runtime_;
  std::string out_;
};

void AppendEscaped(char32_t c, std::string* out) {
  char buffer[16];
  const auto code = static_cast<unsigned>(c);
  if (c < 0x100) {
    std::snprintf(buffer, sizeof(buffer), "\\x%02x", code);
  } else if (c < 0x10000) {
    std::snprintf(buffer, sizeof(buffer), "\\u%04x", code);
  } else {
    std::snprintf(buffer, sizeof(buffer), "\\U%08x", code);
  }
  out->append(buffer);
}

}  // namespace

Result<std::string> JinjaStr(JinjaRuntime& runtime, const JinjaValue& value) {
  if (value.is_string()) {
    if (!runtime.Use(value.text().size())) return runtime.Exhausted();
    return value.text();
  }
  if (value.is_undefined()) return std::string();
  return JinjaRepr(runtime, value);
}

Result<std::string> JinjaRepr(JinjaRuntime& runtime, const JinjaValue& value) {
  ReprWriter writer(runtime);
  KVIK_TRY(writer.Write(value));
  return writer.Take();
}

std::string JinjaFloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  // [-]d[.ddd]e±xx
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  std::string out;
  if (text.front() == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  std::string digits(text.substr(0, 1));
  if (e > 1) digits += text.substr(2, e - 2);
  const int exponent = std::stoi(std::string(text.substr(e + 1)));
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits.substr(0, 1);
    if (count > 1) out += "." + digits.substr(1);
    out += exponent < 0 ? "e-" : "e+";
    const std::string power = std::to_string(std::abs(exponent));
    out += power.size() < 2 ? "0" + power : power;
  } else if (exponent < 0) {
    out += "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  } else if (count <= exponent + 1) {
    out += digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  } else {
    const auto point = static_cast<size_t>(exponent + 1);
    out += digits.substr(0, point) + "." + digits.substr(point);
  }
  return out;
}

std::string JinjaStringRepr(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  for (size_t pos = 0; pos < text.size();) {
    const char32_t c = NextCodePoint(text, &pos);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out.push_back('\\');
      out.push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out.append("\\n");
    } else if (c == '\r') {
      out.append("\\r");
    } else if (c == '\t') {
      out.append("\\t");
    } else if (IsPrintable(c)) {
      AppendUtf8(c, &out);
    } else {
      AppendEscaped(c, &out);
    }
  }
  out.push_back(quote);
  return out;
}

}  // namespace kvik::text
