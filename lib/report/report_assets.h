#pragma once
#include <string_view>

/// The files of a report, embedded in the program by lib/report/embed.cmake.
namespace twofour::report_assets {

extern const std::string_view page_html;  ///< has {{style}}, {{library}}, {{script}} and {{data}}
extern const std::string_view page_css;
extern const std::string_view model_js, heatmap_js, charts_js, tables_js, page_js;
extern const std::string_view d3_js;  ///< empty if the build found no D3

}  // namespace twofour::report_assets
