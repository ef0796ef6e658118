#pragma once
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/jobs/convert/convert.h"
#include "lib/look/metrics/quality.h"
#include "lib/look/metrics/value_error.h"

namespace twofour {

/// A figure as JSON. JSON has no infinity, so the SNR of equal weights becomes null.
Json figure_to_json(double value);

/// The text of a quality: "retained energy 90.1 %, relative error 31.4 %, SNR 10.1 dB, cosine 0.949, decided
/// by ties 25.2 %".
std::string quality_text(const Quality& quality);
Json quality_to_json(const Quality& quality);

/// The text of an error relative to the source's weights: "chosen by statistics or masks: relative error
/// 53.143 %, SNR 5.49 dB".
std::string chosen_text(const EncodeError& error);
Json encode_error_to_json(const EncodeError& error);

/// The text of an error: "relative error 0.167 %, SNR 55.54 dB, cosine 0.999999, largest difference 0.00195,
/// 1024 of 4096 differ".
std::string value_error_text(const ValueError& error);
Json value_error_to_json(const ValueError& error);

/// A text about the loss by encoding for all matrices together and, with `each`, also for each matrix. It
/// consists of complete lines.
std::string encoded_text(const std::vector<ModuleReport>& modules, bool each);
/// The loss by encoding of one matrix, as JSON fields of its module.
Json encoded_to_json(const ModuleReport& module);

}  // namespace twofour
