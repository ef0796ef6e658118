#pragma once
#include <string>

#include "formats/json.h"
#include "lib/quality.h"

namespace twofour {

/// "retained energy 90.1 %, relative error 31.4 %, SNR 10.1 dB, cosine 0.949, tied quads 25.2 %"
std::string quality_text(const Quality& quality);
Json quality_to_json(const Quality& quality);

}  // namespace twofour
