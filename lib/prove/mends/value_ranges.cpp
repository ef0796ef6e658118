#include <cmath>

#include "lib/prove/mends/prove_repair.h"

namespace twofour {

bool is_out_of_range(const std::string& key, const Json& value) {
  if (!value.is_number()) return false;
  const double x = value.get<double>();
  if (key == "top_p" || key == "typical_p") return !(x > 0 && x <= 1);
  if (key == "min_p") return !(x >= 0 && x <= 1);
  if (key == "temperature") return !(x >= 0);
  if (key == "repetition_penalty") return !(x > 0);
  if (key == "top_k") return x < -1;
  if (key == "num_beams" || key == "max_new_tokens") return x < 1;
  return false;
}

bool is_in_range(const std::string& key, const Json& value) {
  if (!value.is_number()) return false;
  const double x = value.get<double>();
  if (key == "top_p") return x > 0 && x < 1;
  if (key == "temperature" || key == "repetition_penalty") return x > 0.01 && x < 2;
  if (key == "top_k") return x >= 1 && x <= 1000 && x == std::floor(x);
  return false;
}

}  // namespace twofour
