#include <doctest/doctest.h>

#include <fstream>
#include <string>

#include "lib/source/dialects/output_dialect.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace source_dialect_test {

using namespace twofour;

namespace {

/// The name of the row that a config.json belongs to; "none" without one. `file`: of hf_quant_config.json.
std::string dialect_of(const Json& config, const Json& file = nullptr) {
  const Scratch scratch;
  Tensors t;
  add_bf16(t, "model.embed_tokens.weight", {32, 64});
  write_checkpoint(scratch / "a", {t}, config.dump());
  if (!file.is_null()) std::ofstream(scratch / "a/hf_quant_config.json") << file.dump();
  const OutputDialect* row = source_dialect(Checkpoint::open(scratch / "a"));
  return row == nullptr ? "none" : std::string(row->name);
}

Json method(const char* name) { return {{"quantization_config", {{"quant_method", name}}}}; }

}  // namespace

TEST_CASE("a source's dialect is that of its method") {
  CHECK(dialect_of(method("modelopt")) == "modelopt");
  CHECK(dialect_of(method("compressed-tensors")) == "compressed-tensors");
  CHECK(dialect_of(method("fp8")) == "deepseek");
  CHECK(dialect_of(method("awq")) == "none");
  CHECK(dialect_of(method("mxfp4")) == "none");
  CHECK(dialect_of(Json::object()) == "none");
}

TEST_CASE("the same method is another dialect in DeepSeek-V4, at any depth") {
  Json config = method("fp8");
  config["model_type"] = "deepseek_v4";
  CHECK(dialect_of(config) == "deepseek-v4");
  config["model_type"] = "deepseek_v3";
  CHECK(dialect_of(config) == "deepseek");
  config["text_config"] = {{"model_type", "deepseek_v41"}};
  CHECK(dialect_of(config) == "deepseek-v4");
}

TEST_CASE("an entry below the text model counts, and hf_quant_config.json where there is none") {
  CHECK(dialect_of({{"text_config", method("compressed-tensors")}}) == "compressed-tensors");
  const Json file = {{"quantization", {{"quant_algo", "NVFP4"}}}};
  CHECK(dialect_of(Json::object(), file) == "modelopt");
  CHECK(dialect_of(method("fp8"), file) == "deepseek");
}

TEST_CASE("rows are asked for by name, and those without NVFP4 only where that is asked for") {
  CHECK(output_dialect("deepseek", false).nvfp4 == nullptr);
  CHECK(contains(message_of([] { output_dialect("deepseek", true); }), "--dialect: expected one of"));
  CHECK(contains(message_of([] { output_dialect("model-opt", false); }), "found 'model-opt'"));
}

}  // namespace source_dialect_test
