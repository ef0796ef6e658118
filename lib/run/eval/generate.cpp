#include "lib/run/eval/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/source/config/model_config.h"

namespace twofour {

Generation generate(const Decoder& model, std::span<const int32_t> prompt, int64_t most,
                    std::span<const int32_t> ends,
                    const std::function<void(std::span<const GeneratedToken>)>& chosen) {
  // On a device, several tokens are chosen in one go, so that the device does not wait for the host.
  const int64_t at_once = model.device() == Device::cuda ? 8 : 1;
  Generation made;
  DecoderSequence sequence(model);
  sequence.reserve(static_cast<int64_t>(prompt.size()) + most);
  sequence.append(prompt);
  most = std::min(most, model.shape().positions - sequence.size());
  const int64_t begin = sequence.size();
  while (!made.is_ended && static_cast<int64_t>(made.tokens.size()) < most) {
    const int64_t left = most - static_cast<int64_t>(made.tokens.size());
    for (const LikelyToken& t : sequence.choose(std::min(at_once, left))) {
      if (!std::isfinite(t.log_probability)) {
        throw Error(fmt::format("{}: token {}: expected finite logits, found others",
                                model.checkpoint().path().string(),
                                begin + static_cast<int64_t>(made.tokens.size())));
      }
      made.tokens.push_back({t.token, t.log_probability});
      made.is_ended = std::find(ends.begin(), ends.end(), t.token) != ends.end();
      if (made.is_ended) break;
    }
    if (chosen) chosen(made.tokens);
  }
  return made;
}

std::vector<int32_t> ending_tokens(const Checkpoint& checkpoint) {
  const std::filesystem::path beside = checkpoint.path() / "generation_config.json";
  Json config = checkpoint.config();
  std::string where = (checkpoint.path() / "config.json").string();
  std::error_code none;
  if (checkpoint.is_directory() && std::filesystem::is_regular_file(beside, none)) {
    Json other = parse_json(beside.string(), read_text(beside));
    if (other.is_object() && other.contains("eos_token_id") && !other["eos_token_id"].is_null()) {
      config = std::move(other);
      where = beside.string();
    }
  }
  std::vector<int32_t> ends;
  for (const Json* configured : model_settings(config, "eos_token_id")) {
    const auto add = [&](const Json& token) {
      if (!token.is_number_integer() || token.get<int64_t>() < 0 || token.get<int64_t>() > INT32_MAX) {
        throw Error(fmt::format("{}: eos_token_id: expected a token or a list of tokens, found {}", where,
                                quoted_setting(*configured)));
      }
      ends.push_back(static_cast<int32_t>(token.get<int64_t>()));
    };
    if (configured->is_array()) {
      for (const Json& token : *configured) add(token);
    } else {
      add(*configured);
    }
  }
  return ends;
}

}  // namespace twofour
