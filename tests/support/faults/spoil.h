#pragma once
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/faults/faults.h"

// Changes of a checkpoint, as words that planted changes are written in. Names of tensors may have one *.

namespace twofour::spoil {

using Change = std::function<void(Save&, std::mt19937&)>;

/// The one value below the dotted path of a JSON file; objects on the way are made.
Json& at_path(Json& json, std::string_view path);

/// Sets, erases or edits a value of config.json ("text_config.hidden_size").
Change set_key(std::string path, Json value);
Change erase_key(std::string path);
Change edit_key(std::string path, std::function<void(Json&)> change);
/// The same in hf_quant_config.json.
Change set_hf(std::string path, Json value);
/// The same in both files, which have different names for it.
Change set_both(std::string config_path, std::string hf_path, Json value);
/// Adds names to, or takes those that contain `part` from, the lists of unquantized modules of all files that
/// have one.
Change ignore_also(std::vector<std::string> names);
Change ignore_no_more(std::string part);
/// One after the other.
Change all_of(std::vector<Change> changes);

/// Every tensor whose name fits `pattern`; throws if there is none.
std::vector<TensorData*> tensors(Save& save, std::string_view pattern);

Change drop(std::string pattern);
/// Drops all tensors below a prefix.
Change drop_below(std::string prefix);
/// Renames what begins with `from`.
Change rename(std::string from, std::string to);
/// Copies the bytes of tensors that begin with `from` to those that begin with `to`: same ends of names, same
/// shapes.
Change copy_bytes(std::string from, std::string to);
/// Exchanges bytes likewise.
Change swap_bytes(std::string a, std::string b);
/// Adds tensors that begin with `from` again, under `to`.
Change add_copy(std::string from, std::string to);
/// A BF16 tensor around zero.
Change add_bf16(std::string name, std::vector<int64_t> shape);
/// A scalar.
Change add_f32(std::string name, float value, std::vector<int64_t> shape = {});
/// Keeps the first `rows` rows, or as many more as zeros.
Change resize_rows(std::string pattern, int64_t rows);
/// Keeps the first `columns` of the last dimension.
Change cut_columns(std::string pattern, int64_t columns);
/// Every F32 or BF16 element becomes f(element).
Change map_floats(std::string pattern, std::function<float(float)> f);
Change set_floats(std::string pattern, float value);
/// Every byte.
Change map_bytes(std::string pattern, std::function<uint8_t(uint8_t, size_t, std::mt19937&)> f);
/// Row by row: f(row, bytes of the row).
Change map_rows(std::string pattern, std::function<void(int64_t, uint8_t*, size_t)> f);
/// Every tensor with its bytes.
Change edit_tensors(std::string pattern, std::function<void(TensorData&)> f);
/// BF16 or F32 tensor in F32 with the same numbers.
Change widen(std::string pattern);
/// The module of these codes dequantized to BF16, its scales dropped; ModelOpt or compressed-tensors NVFP4.
Change dequantize(std::string module);

/// Number of rows times all dimensions but the last, and bytes of one.
size_t row_bytes(const TensorData& t);

}  // namespace twofour::spoil
