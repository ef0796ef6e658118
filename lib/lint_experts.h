#pragma once
#include <set>

#include "lib/lint/subject.h"

namespace twofour {

/// Holds each layer's experts, in whatever format, against each other and against config.json: none missing,
/// none too many, all alike.
void lint_experts(const LintSubject& subject, LintSink& sink);

/// Every positive integer that config.json states under one of `keys`, at the top or in its text model.
std::set<int64_t> promised_counts(const Json& config, std::initializer_list<const char*> keys);

/// Whether `name` ends in one of the names that dialects give input scales.
bool is_input_scale(std::string_view name);

}  // namespace twofour
