// SPDX-License-Identifier: Apache-2.0
// json.dumps(), and HTML escapes.
#include <cstdio>

#include "text/jinja_format.h"
#include "text/jinja_ops.h"
#include "text/jinja_unicode.h"

namespace kvik::text {
namespace {

class JsonWriter {
 public:
  JsonWriter(JinjaRuntime& runtime, const JinjaJsonOptions& options)
      : runtime_(runtime), options_(options) {}

  Result<void> Write(const JinjaValue& value, size_t level) {
    const JinjaDepth depth(runtime_);
    if (!depth.ok() || !runtime_.Step()) return runtime_.Exhausted();
    switch (value.kind()) {
      case JinjaValue::Kind::kNone:
        return Append("null");
      case JinjaValue::Kind::kBool:
        return Append(value.boolean() ? "true" : "false");
      case JinjaValue::Kind::kInt:
        return Append(std::to_string(value.integer()));
      case JinjaValue::Kind::kFloat:
        return Append(Number(value.floating()));
      case JinjaValue::Kind::kString:
        return WriteString(value.text());
      case JinjaValue::Kind::kList:
      case JinjaValue::Kind::kTuple:
        return WriteList(value.items(), level);
      case JinjaValue::Kind::kDict:
        return WriteDict(value.dict(), level);
      default:
        return Err(ErrorCode::kInvalidInput, "tojson: '%s' is not JSON serializable",
                   JinjaTypeName(value).c_str());
    }
  }

  std::string Take() { return std::move(out_); }

 private:
  Result<void> Append(std::string_view text) {
    if (!runtime_.Use(text.size())) return runtime_.Exhausted();
    out_.append(text);
    return {};
  }

  static std::string Number(double value) {
    std::string text = JinjaFloatRepr(value);
    if (text == "nan") return "NaN";
    if (text == "inf") return "Infinity";
    if (text == "-inf") return "-Infinity";
    return text;
  }

  Result<void> WriteString(std::string_view text) {
    std::string quoted = "\"";
    for (size_t pos = 0; pos < text.size();) {
      const size_t begin = pos;
      const char32_t c = NextCodePoint(text, &pos);
      switch (c) {
        case '"':
          quoted += "\\\"";
          break;
        case '\\':
          quoted += "\\\\";
          break;
        case '\n':
          quoted += "\\n";
          break;
        case '\r':
          quoted += "\\r";
          break;
        case '\t':
          quoted += "\\t";
          break;
        case '\b':
          quoted += "\\b";
          break;
        case '\f':
          quoted += "\\f";
          break;
        default:
          if (c < 0x20 || (options_.ensure_ascii && c > 0x7E)) {
            AppendEscape(c, &quoted);
          } else {
            quoted.append(text.substr(begin, pos - begin));
          }
      }
    }
    quoted += '"';
    return Append(quoted);
  }

  static void AppendEscape(char32_t c, std::string* out) {
    char buffer[16];
    if (c >= 0x10000) {  // a surrogate pair
      const auto offset = static_cast<unsigned>(c - 0x10000);
      std::snprintf(buffer, sizeof(buffer), "\\u%04x\\u%04x", 0xD800 + (offset >> 10),
                    0xDC00 + (offset & 0x3FF));
    } else {
      std::snprintf(buffer, sizeof(buffer), "\\u%04x", static_cast<unsigned>(c));
    }
    *out += buffer;
  }

  Result<void> NewLine(size_t level) {
    if (!options_.indent) return {};
    KVIK_TRY(Append("\n"));
    for (size_t i = 0; i < level; ++i) KVIK_TRY(Append(*options_.indent));
    return {};
  }

  Result<void> WriteList(const std::vector<JinjaValue>& items, size_t level) {
    if (items.empty()) return Append("[]");
    KVIK_TRY(Append("["));
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) KVIK_TRY(Append(options_.item_separator));
      KVIK_TRY(NewLine(level + 1));
      KVIK_TRY(Write(items[i], level + 1));
    }
    KVIK_TRY(NewLine(level));
    return Append("]");
  }

  Result<void> WriteDict(const JinjaDict& dict, size_t level) {
    if (dict.size() == 0) return Append("{}");
    std::vector<size_t> order;
    if (options_.sort_keys) {
      std::vector<JinjaValue> keys;
      keys.reserve(dict.size());
      for (const JinjaDict::Entry& entry : dict.entries()) keys.push_back(entry.first);
      KVIK_ASSIGN(order, JinjaSortedOrder(runtime_, keys, false));
    }
    KVIK_TRY(Append("{"));
    for (size_t i = 0; i < dict.size(); ++i) {
      const auto& [key, value] = dict.entries()[order.empty() ? i : order[i]];
      if (i > 0) KVIK_TRY(Append(options_.item_separator));
      KVIK_TRY(NewLine(level + 1));
      KVIK_TRY(WriteKey(key));
      KVIK_TRY(Append(options_.key_separator));
      KVIK_TRY(Write(value, level + 1));
    }
    KVIK_TRY(NewLine(level));
    return Append("}");
  }

  Result<void> WriteKey(const JinjaValue& key) {
    switch (key.kind()) {
      case JinjaValue::Kind::kString:
        return WriteString(key.text());
      case JinjaValue::Kind::kNone:
        return Append("\"null\"");
      case JinjaValue::Kind::kBool:
        return Append(key.boolean() ? "\"true\"" : "\"false\"");
      case JinjaValue::Kind::kInt:
        return WriteString(std::to_string(key.integer()));
      case JinjaValue::Kind::kFloat:
        return WriteString(Number(key.floating()));
      default:
        return Err(ErrorCode::kInvalidInput, "tojson: a key is '%s'", JinjaTypeName(key).c_str());
    }
  }

  JinjaRuntime& runtime_;
  const JinjaJsonOptions& options_;
  std::string out_;
};

}  // namespace

Result<std::string> JinjaToJson(JinjaRuntime& runtime, const JinjaValue& value,
                                const JinjaJsonOptions& options) {
  JsonWriter writer(runtime, options);
  KVIK_TRY(writer.Write(value, 0));
  return writer.Take();
}

std::string JinjaEscapeHtml(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '\'':
        out += "&#39;";
        break;
      case '"':
        out += "&#34;";
        break;
      default:
        out.push_back(c);
    }
  }
  return out;
}

}  // namespace kvik::text
