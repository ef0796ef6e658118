#include "formats/weight_dialect.h"

#include <doctest/doctest.h>

namespace weight_dialect_test {

using namespace twofour;

TEST_CASE("embeddings and their pieces are tables, not linears") {
  for (const char* name : {"model.embed_tokens", "wte", "model.embed_tokens_per_layer", "x.ngram_embedding",
                           "x.ngram_embedding.shard_0", "x.ngram_embedding.shards.127", "embed.shard_12"}) {
    CAPTURE(name);
    CHECK(is_table_name(name));
    CHECK(!is_linear_name(name));
  }
  for (const char* name : {"lm_head", "x.shard_0", "shard_0", "x.embed_tokens.proj", "embed.shard_",
                           "embed.shard_a", "embed.shards.x", "embed.1", "x.shards.3"}) {
    CAPTURE(name);
    CHECK(!is_table_name(name));
    CHECK(is_linear_name(name));
  }
  for (const char* name : {"x.conv1d", "x.input_layernorm"})
    CHECK((!is_table_name(name) && !is_linear_name(name)));
}

TEST_CASE("the embedding that a piece belongs to") {
  CHECK(table_of_piece("a.embed.shard_3") == "a.embed");
  CHECK(table_of_piece("a.embed.shards.3") == "a.embed");
  for (const char* name : {"", "shard_3", "a.embed", "a.embed.3", "a.shard_3b", "shards.3"})
    CHECK(table_of_piece(name).empty());
}

TEST_CASE("every format has a name of its own") {
  CHECK(weight_format_name(WeightFormat::kFloat) == std::string_view("floats"));
  CHECK(weight_format_name(WeightFormat::kFp8) == std::string_view("FP8"));
  CHECK(weight_format_name(WeightFormat::kMxfp4) == std::string_view("MXFP4"));
  CHECK(weight_format_name(WeightFormat::kNvfp4) == std::string_view("NVFP4"));
  CHECK(weight_format_name(WeightFormat::kInt4) == std::string_view("INT4"));
}

}  // namespace weight_dialect_test
