#include "lib/prove/validate/quantized/quantized_check.h"

namespace twofour {

QuantizedCheck::QuantizedCheck(const QuantizedGroup& group, Proof& proof)
    : GroupReader(group, proof), encode_rule_(group.encode_rule()), rule_(*encode_rule_.settings) {}

std::vector<EncodedResult> QuantizedCheck::run() {
  const std::vector<EncodedMatrix>& matrices = group_.matrices();
  std::vector<EncodedResult> results(matrices.size());
  float largest = 0;
  for (size_t i = 0; i < results.size(); ++i)
    largest = std::max(largest, largest_of(matrices[i], results[i]));
  prepare(largest);
  for (size_t i = 0; i < results.size(); ++i) check(matrices[i], results[i]);
  for (const EncodedMatrix& m : matrices) check_input_scale(m);
  for (const EncodedMatrix& m : matrices) check_bias(m);
  report();
  return results;
}

bool QuantizedCheck::casts(const EncodedMatrix& m) const {
  if (rule_.exact.text() == "off" || !rule_.pattern.empty() || group_.kept().find(m.name)) return false;
  return m.source->format == WeightFormat::kMxfp4 ||
         (encode_rule_.to == "fp8" && m.source->format == WeightFormat::kNvfp4);
}

float QuantizedCheck::source_scalar(size_t tensor, const EncodedMatrix& m) const {
  Bytes bytes(sizeof(float));
  const bool is_shared = source_.tensors()[tensor].bytes() == bytes.size();
  source_.read(tensor, is_shared ? 0 : static_cast<uint64_t>(m.expert) * bytes.size(), bytes);
  return float_in(bytes, 0);
}

Json QuantizedGroup::prove(Proof& proof) const {
  std::unique_ptr<QuantizedCheck> check;
  if (rule_.to == "fp8") {
    check = make_fp8_check(*this, proof);
  } else if (const auto format = expected_mx(rule_.to)) {
    check = make_mx_check(*this, proof, *format);
  } else {
    check = make_nvfp4_check(*this, proof);
  }
  Json result = Json::array();
  for (const EncodedResult& r : check->run()) result.push_back(to_json(r));
  return result;
}

}  // namespace twofour
