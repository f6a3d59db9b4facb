// SPDX-License-Identifier: Apache-2.0
#include "server/openai_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace kvik::server {
namespace {

constexpr const char* kMessages = R"("messages":[{"role":"user","content":"hi"}])";

std::string Chat(const std::string& fields) {
  return std::string("{") + kMessages + (fields.empty() ? "" : "," + fields) + "}";
}

// The parameter at fault, or "" for success, or "?" for an error without one.
std::string ChatFault(const std::string& body) {
  const auto result = ParseChatCompletionRequest(body);
  if (!Failed(result)) {
    return "";
  }
  const ApiError& error = std::get<ApiError>(result);
  EXPECT_EQ(error.status, 400);
  EXPECT_FALSE(error.message.empty());
  return error.param.empty() ? "?" : error.param;
}
std::string CompletionFault(const std::string& body) {
  const auto result = ParseCompletionRequest(body);
  return !Failed(result)                            ? ""
         : std::get<ApiError>(result).param.empty() ? "?"
                                                    : std::get<ApiError>(result).param;
}

TEST(OpenAiRequest, ReadsEveryFieldOfAChat) {
  const auto result = ParseChatCompletionRequest(Chat(
      R"("model":"m","max_tokens":7,"temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.1,"n":2,
      "seed":-3,"stop":["a","b"],"stop_token_ids":[5],"stream":true,"logprobs":true,
      "stream_options":{"include_usage":true},"top_logprobs":3,"logit_bias":{"12":-1.5},
      "presence_penalty":1,"frequency_penalty":-1,"repetition_penalty":1.2,"ignore_eos":true,
      "min_tokens":2,"skip_special_tokens":false,"include_stop_str_in_output":true,"priority":-4,
      "cache_salt":"s","user":"u","some_future_field":{"x":1})"));
  ASSERT_FALSE(Failed(result)) << std::get<ApiError>(result).message;
  const GenerationParams& p = std::get<ChatCompletionRequest>(result).params;
  EXPECT_EQ(p.model, "m");
  EXPECT_EQ(p.max_tokens, 7);
  EXPECT_FLOAT_EQ(p.sampling.temperature, 0.5F);
  EXPECT_FLOAT_EQ(p.sampling.top_p, 0.9F);
  EXPECT_EQ(p.sampling.top_k, 40);
  EXPECT_FLOAT_EQ(p.sampling.min_p, 0.1F);
  EXPECT_EQ(p.n, 2);
  EXPECT_EQ(p.sampling.seed, static_cast<uint64_t>(-3));
  EXPECT_THAT(p.stop, testing::ElementsAre("a", "b"));
  EXPECT_THAT(p.stop_token_ids, testing::ElementsAre(5));
  EXPECT_TRUE(p.stream);
  EXPECT_TRUE(p.include_usage);
  EXPECT_EQ(p.sampling.num_logprobs, 3);
  ASSERT_EQ(p.sampling.logit_bias.size(), 1U);
  EXPECT_EQ(p.sampling.logit_bias[0].first, 12);
  EXPECT_FLOAT_EQ(p.sampling.repetition_penalty, 1.2F);
  EXPECT_TRUE(p.ignore_eos);
  EXPECT_EQ(p.min_tokens, 2);
  EXPECT_FALSE(p.skip_special_tokens);
  EXPECT_TRUE(p.include_stop_str_in_output);
  EXPECT_EQ(p.priority, -4);
  EXPECT_EQ(p.cache_salt, "s");
}

TEST(OpenAiRequest, NullMeansTheDefault) {
  const auto result = ParseChatCompletionRequest(Chat(
      R"("temperature":null,"stop":null,"n":null,"max_tokens":null,"seed":null,"tools":null)"));
  ASSERT_FALSE(Failed(result));
  const GenerationParams& p = std::get<ChatCompletionRequest>(result).params;
  EXPECT_FLOAT_EQ(p.sampling.temperature, 1.0F);
  EXPECT_EQ(p.n, 1);
  EXPECT_FALSE(p.max_tokens.has_value());
  EXPECT_EQ(p.sampling.num_logprobs, -1);
}

TEST(OpenAiRequest, NamesTheFieldThatIsWrong) {
  const struct {
    const char* fields;
    const char* param;
  } cases[] = {
      {R"("temperature":-1)", "temperature"},
      {R"("temperature":"hot")", "temperature"},
      {R"("temperature":1e30)", "temperature"},
      {R"("temperature":true)", "temperature"},
      {R"("top_p":0)", "top_p"},
      {R"("top_p":1.01)", "top_p"},
      {R"("top_k":-2)", "top_k"},
      {R"("top_k":1.5)", "top_k"},
      {R"("min_p":2)", "min_p"},
      {R"("n":0)", "n"},
      {R"("n":99999999999999999999)", "n"},
      {R"("max_tokens":0)", "max_tokens"},
      {R"("max_tokens":1e300)", "max_tokens"},
      {R"("max_completion_tokens":-5)", "max_completion_tokens"},
      {R"("min_tokens":9,"max_tokens":8)", "min_tokens"},
      {R"("seed":"x")", "seed"},
      {R"("stop":[1])", "stop"},
      {R"("stop":"")", "stop"},
      {R"("stop":{})", "stop"},
      {R"("stop_token_ids":[-1])", "stop_token_ids"},
      {R"("stop_token_ids":5)", "stop_token_ids"},
      {R"("logit_bias":{"a":1})", "logit_bias"},
      {R"("logit_bias":{"1":101})", "logit_bias"},
      {R"("logit_bias":[])", "logit_bias"},
      {R"("presence_penalty":3)", "presence_penalty"},
      {R"("frequency_penalty":-3)", "frequency_penalty"},
      {R"("repetition_penalty":0)", "repetition_penalty"},
      {R"("stream":1)", "stream"},
      {R"("stream_options":{"include_usage":true})", "stream_options"},
      {R"("stream":true,"stream_options":{"include_usage":3})", "stream_options.include_usage"},
      {R"("logprobs":2)", "logprobs"},
      {R"("top_logprobs":2)", "top_logprobs"},
      {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
      {R"("cache_salt":"")", "cache_salt"},
      {R"("cache_salt":7)", "cache_salt"},
      {R"("priority":1e12)", "priority"},
      {R"("model":5)", "model"},
      {R"("tools":{})", "tools"},
      {R"("tools":[1])", "tools"},
      {R"("chat_template_kwargs":[])", "chat_template_kwargs"},
      {R"("continue_final_message":true,"add_generation_prompt":true)", "continue_final_message"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(ChatFault(Chat(c.fields)), c.param) << c.fields;
  }
}

TEST(OpenAiRequest, NamesWhatItKnowsAndDoesNotDo) {
  for (const char* fields :
       {R"("response_format":{"type":"json_object"})", R"("tool_choice":"required")",
        R"("prompt_logprobs":1)", R"("guided_json":{})", R"("use_beam_search":true)",
        R"("functions":[])", R"("chat_template":"x")", R"("echo":true)"}) {
    const auto result = ParseChatCompletionRequest(Chat(fields));
    ASSERT_TRUE(Failed(result)) << fields;
    EXPECT_EQ(std::get<ApiError>(result).code, "unsupported_parameter") << fields;
    EXPECT_NE(std::get<ApiError>(result).param, "") << fields;
  }
  EXPECT_EQ(ChatFault(Chat(R"("response_format":{"type":"text"},"tool_choice":"auto")")), "");
}

TEST(OpenAiRequest, ReadsTheKvikObject) {
  const auto params = [](const std::string& fields) {
    const auto result = ParseCompletionRequest("{\"prompt\":\"a\"," + fields + "}");
    EXPECT_FALSE(Failed(result)) << fields;
    return std::get<CompletionRequest>(result).params;
  };
  const GenerationParams all =
      params(R"("kvik":{"session":"a","will_continue":false,"forced_token_ids":[3,1,2]})");
  EXPECT_NE(all.session, 0U);
  EXPECT_EQ(all.will_continue, false);
  EXPECT_EQ(all.forced_tokens, (std::vector<TokenId>{3, 1, 2}));
  EXPECT_EQ(all.max_tokens, 3);
  EXPECT_EQ(params(R"("kvik":{"session":17})").session,
            params(R"("kvik":{"session":"17"})").session);
  EXPECT_NE(params(R"("kvik":{"session":"b"})").session, all.session);
  const GenerationParams none = params(R"("kvik":{})");
  EXPECT_EQ(none.session, 0U);
  EXPECT_FALSE(none.will_continue.has_value());
  EXPECT_TRUE(none.forced_tokens.empty());

  const auto fault = [](const std::string& kvik) {
    return CompletionFault("{\"prompt\":\"a\",\"max_tokens\":2,\"kvik\":" + kvik + "}");
  };
  EXPECT_EQ(fault("5"), "kvik");
  EXPECT_EQ(fault(R"({"session":""})"), "kvik.session");
  EXPECT_EQ(fault(R"({"session":1.5})"), "kvik.session");
  EXPECT_EQ(fault(R"({"will_continue":1})"), "kvik.will_continue");
  EXPECT_EQ(fault(R"({"forced_token_ids":[1,-2]})"), "kvik.forced_token_ids");
  EXPECT_EQ(fault(R"({"forced_token_ids":[1,2,3]})"), "kvik.forced_token_ids");
  EXPECT_EQ(fault(R"({"sesion":"a"})"), "kvik.sesion");
}

TEST(OpenAiRequest, ReadsRetention) {
  const auto body = [](const std::string& retention) {
    return R"({"prompt":"a","kvik":{"retention":)" + retention + "}}";
  };
  const auto parsed = ParseCompletionRequest(
      body(R"({"ranges":[{"start":0,"end":512,"priority":80,"duration_ms":60000},)"
           R"({"start":512,"priority":10}],"decode_priority":20,"decode_duration_ms":5})"));
  ASSERT_FALSE(Failed(parsed));
  const auto retention = std::get<CompletionRequest>(parsed).params.retention;
  ASSERT_NE(retention, nullptr);
  ASSERT_EQ(retention->ranges.size(), 2U);
  EXPECT_EQ(retention->ranges[0].end_token, 512);
  EXPECT_EQ(retention->ranges[0].priority, 80);
  EXPECT_EQ(retention->ranges[0].duration_us, 60'000'000);
  EXPECT_EQ(retention->ranges[1].start_token, 512);
  EXPECT_EQ(retention->ranges[1].end_token, std::numeric_limits<int32_t>::max());
  EXPECT_EQ(retention->ranges[1].duration_us, kv::kForGood);
  EXPECT_EQ(retention->decode_priority, 20);
  EXPECT_EQ(retention->decode_duration_us, 5000);
  EXPECT_TRUE(kv::ValidateRetention(*retention).has_value());
  EXPECT_EQ(std::get<CompletionRequest>(ParseCompletionRequest(body("null"))).params.retention,
            nullptr);

  const auto fault = [&](const std::string& text) { return CompletionFault(body(text)); };
  EXPECT_EQ(fault("5"), "kvik.retention");
  EXPECT_EQ(fault(R"({"range":[]})"), "kvik.retention.range");
  EXPECT_EQ(fault(R"({"ranges":{}})"), "kvik.retention.ranges");
  EXPECT_EQ(fault(R"({"ranges":[3]})"), "kvik.retention.ranges[0]");
  EXPECT_EQ(fault(R"({"ranges":[{"start":0}]})"), "kvik.retention.ranges[0].priority");
  EXPECT_EQ(fault(R"({"ranges":[{"priority":101}]})"), "kvik.retention.ranges[0].priority");
  EXPECT_EQ(fault(R"({"ranges":[{"priority":1},{"start":-1,"priority":1}]})"),
            "kvik.retention.ranges[1].start");
  EXPECT_EQ(fault(R"({"ranges":[{"start":4,"end":4,"priority":1}]})"),
            "kvik.retention.ranges[0].end");
  EXPECT_EQ(fault(R"({"ranges":[{"priority":1,"duration_ms":0}]})"),
            "kvik.retention.ranges[0].duration_ms");
  EXPECT_EQ(fault(R"({"ranges":[{"priority":1,"until":0}]})"), "kvik.retention.ranges[0].until");
  EXPECT_EQ(fault(R"({"decode_priority":-1})"), "kvik.retention.decode_priority");
  EXPECT_EQ(fault(R"({"decode_duration_ms":1.5})"), "kvik.retention.decode_duration_ms");
}

TEST(OpenAiRequest, RefusesMessagesThatAreNone) {
  EXPECT_EQ(ChatFault("{}"), "messages");
  EXPECT_EQ(ChatFault(R"({"messages":[]})"), "messages");
  EXPECT_EQ(ChatFault(R"({"messages":"hi"})"), "messages");
  EXPECT_EQ(ChatFault(R"({"messages":[5]})"), "messages[0]");
  EXPECT_EQ(ChatFault(R"({"messages":[{"content":"x"}]})"), "messages[0].role");
  EXPECT_EQ(ChatFault(R"({"messages":[{"role":"user"}]})"), "messages[0].content");
  EXPECT_EQ(ChatFault(R"({"messages":[{"role":"user","content":5}]})"), "messages[0].content");
  EXPECT_EQ(ChatFault(R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})"),
            "messages[0].content[0].type");
  EXPECT_EQ(ChatFault(R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]})"),
            "");
  EXPECT_EQ(ChatFault(R"({"messages":[{"role":"assistant","content":null}]})"), "");
}

TEST(OpenAiRequest, RefusesBodiesThatAreNoObjects) {
  for (const char* body : {"", "{", "[]", "null", "{\"a\":NaN}", "{\"a\":1e999}", "\"x\"",
                           "{\"a\":\"\xff\"}", "{\"a\":\"\\ud800\"}", "{} {}"}) {
    EXPECT_EQ(ChatFault(body), "?") << body;
  }
}

TEST(OpenAiRequest, BoundsNestingAndMembers) {
  const std::string deep = std::string(100'000, '[') + std::string(100'000, ']');
  EXPECT_EQ(ChatFault(Chat("\"tools\":" + deep)), "?");
  std::string wide = "{";
  for (int i = 0; i < 100'000; ++i) {
    wide += "\"k" + std::to_string(i) + "\":0,";
  }
  wide.back() = '}';
  EXPECT_EQ(ChatFault(Chat("\"logit_bias\":" + wide)), "?");
}

TEST(OpenAiRequest, TakesPromptsInAllFourForms) {
  const auto prompts = [](const std::string& prompt) {
    const auto result = ParseCompletionRequest("{\"prompt\":" + prompt + "}");
    EXPECT_FALSE(Failed(result)) << prompt;
    return Failed(result) ? 0 : std::get<CompletionRequest>(result).prompts.size();
  };
  EXPECT_EQ(prompts(R"("text")"), 1U);
  EXPECT_EQ(prompts(R"(["a","b"])"), 2U);
  EXPECT_EQ(prompts("[1,2,3]"), 1U);
  EXPECT_EQ(prompts("[[1,2],[3]]"), 2U);
  for (const char* prompt : {"[]", "5", "[1,\"a\"]", "[-1]", "[1.5]", "{}", "[{}]", "null"}) {
    EXPECT_EQ(CompletionFault(std::string("{\"prompt\":") + prompt + "}"), "prompt") << prompt;
  }
  EXPECT_EQ(CompletionFault(R"({"prompt":["a","b"],"n":128})"), "n");
  EXPECT_EQ(CompletionFault(R"({"prompt":"a","echo":true,"logprobs":1})"), "echo");
  EXPECT_EQ(CompletionFault(R"({"prompt":"a","suffix":"b"})"), "suffix");
}

TEST(OpenAiRequest, ErrorsHaveOpenAisForm) {
  ApiError error;
  error.message = "say \"x\"";
  error.param = "n";
  EXPECT_EQ(FormatError(error),
            R"({"error":{"message":"say \"x\"","type":"invalid_request_error","param":"n",)"
            R"("code":null}})");
}

TEST(OpenAiRequest, ReadsWhatIsSaidOfKv) {
  const auto params = [](const std::string& fields) {
    const auto result = ParseCompletionRequest("{\"prompt\":\"a\"," + fields + "}");
    EXPECT_FALSE(Failed(result)) << fields;
    return std::get<CompletionRequest>(result).params.kv;
  };
  const KvParams all = params(
      R"("kvik":{"workload":"qa","slo_ttft_ms":250,"slo_ms":1500.5,"quality":0.97},
      "kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_host":"h",
      "remote_port":4711,"remote_engine_id":"e","remote_request_id":"r","remote_block_ids":[1,2],
      "tp_size":1})");
  EXPECT_EQ(all.workload, "qa");
  EXPECT_EQ(all.slo_ttft_us, 250'000);
  EXPECT_EQ(all.slo_us, 1'500'500);
  EXPECT_FLOAT_EQ(all.quality.value(), 0.97F);
  ASSERT_TRUE(all.transfer.has_value());
  EXPECT_TRUE(all.transfer->do_remote_prefill);
  EXPECT_FALSE(all.transfer->do_remote_decode);
  EXPECT_EQ(all.transfer->remote_host, "h");
  EXPECT_EQ(all.transfer->remote_port, 4711);
  EXPECT_EQ(all.transfer->remote_engine_id, "e");
  EXPECT_EQ(all.transfer->remote_request_id, "r");
  const KvParams none = params(R"("kvik":{},"kv_transfer_params":null)");
  EXPECT_FALSE(none.quality.has_value());
  EXPECT_FALSE(none.transfer.has_value());
  EXPECT_EQ(none.slo_us, 0);
  EXPECT_EQ(params(R"("kvik":{"slo_ms":0.001})").slo_us, 1) << "limits are included";
  // What a proxy sends to a server that computes prompts.
  EXPECT_TRUE(params(R"("kv_transfer_params":{"do_remote_decode":true,"remote_host":null,
      "remote_port":null})")
                  .transfer->do_remote_decode);

  const auto fault = [](const std::string& fields) {
    return CompletionFault("{\"prompt\":\"a\"," + fields + "}");
  };
  EXPECT_EQ(fault(R"("kvik":{"workload":""})"), "kvik.workload");
  EXPECT_EQ(fault(R"("kvik":{"workload":7})"), "kvik.workload");
  EXPECT_EQ(fault(R"("kvik":{"slo_ms":0})"), "kvik.slo_ms");
  EXPECT_EQ(fault(R"("kvik":{"slo_ttft_ms":-1})"), "kvik.slo_ttft_ms");
  EXPECT_EQ(fault(R"("kvik":{"slo_ttft_ms":"fast"})"), "kvik.slo_ttft_ms");
  EXPECT_EQ(fault(R"("kvik":{"quality":-0.1})"), "kvik.quality");
  EXPECT_EQ(fault(R"("kvik":{"quality":1.01})"), "kvik.quality");
  EXPECT_EQ(fault(R"("kv_transfer_params":[])"), "kv_transfer_params");
  EXPECT_EQ(fault(R"("kv_transfer_params":{"do_remote_prefill":1})"),
            "kv_transfer_params.do_remote_prefill");
  EXPECT_EQ(fault(R"("kv_transfer_params":{"do_remote_prefill":true})"),
            "kv_transfer_params.remote_host");
  EXPECT_EQ(fault(R"("kv_transfer_params":{"do_remote_prefill":true,"remote_host":"h"})"),
            "kv_transfer_params.remote_port");
  EXPECT_EQ(fault(R"("kv_transfer_params":{"remote_port":65536})"),
            "kv_transfer_params.remote_port");
}

TEST(KvHeaders, SayWhatTheBodyDoesNot) {
  HttpRequest request;
  request.headers = {{"x-kvik-workload", "math"},
                     {"X-Kvik-Slo-Ttft-Ms", "100"},
                     {"X-Kvik-Slo-Ms", "2.5"},
                     {"X-Kvik-Quality", "0.9"}};
  KvParams empty;
  EXPECT_FALSE(ReadKvHeaders(request, empty).has_value());
  EXPECT_EQ(empty.workload, "math");
  EXPECT_EQ(empty.slo_ttft_us, 100'000);
  EXPECT_EQ(empty.slo_us, 2'500);
  EXPECT_FLOAT_EQ(empty.quality.value(), 0.9F);
  KvParams full{.workload = "qa", .slo_ttft_us = 1, .slo_us = 2, .quality = 1.0F, .transfer = {}};
  EXPECT_FALSE(ReadKvHeaders(request, full).has_value());
  EXPECT_EQ(full.workload, "qa");
  EXPECT_EQ(full.slo_ttft_us, 1);
  EXPECT_EQ(full.slo_us, 2);
  EXPECT_EQ(full.quality, 1.0F);

  for (const auto& [name, value] : HttpHeaders{{"X-Kvik-Workload", ""},
                                               {"X-Kvik-Workload", std::string(65, 'x')},
                                               {"X-Kvik-Slo-Ttft-Ms", "0"},
                                               {"X-Kvik-Slo-Ms", "1 s"},
                                               {"X-Kvik-Slo-Ms", "nan"},
                                               {"X-Kvik-Quality", "1.5"},
                                               {"X-Kvik-Quality", ""}}) {
    HttpRequest bad;
    bad.headers = {{name, value}};
    KvParams params;
    const std::optional<ApiError> error = ReadKvHeaders(bad, params);
    ASSERT_TRUE(error.has_value()) << name << ": " << value;
    EXPECT_EQ(error->param, name);
    EXPECT_EQ(error->status, 400);
  }
}

}  // namespace
}  // namespace kvik::server
