#pragma once
#include <string>

#include "formats/json.h"
#include "lib/quality.h"
#include "lib/value_error.h"

namespace twofour {

/// "retained energy 90.1 %, relative error 31.4 %, SNR 10.1 dB, cosine 0.949, decided by ties 25.2 %"
std::string quality_text(const Quality& quality);
Json quality_to_json(const Quality& quality);

/// "relative error 0.167 %, SNR 55.54 dB, cosine 0.999999, largest difference 0.00195, 1024 of 4096 differ"
std::string value_error_text(const ValueError& error);
Json value_error_to_json(const ValueError& error);

}  // namespace twofour
