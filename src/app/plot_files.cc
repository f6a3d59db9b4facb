// SPDX-License-Identifier: Apache-2.0
#include "app/plot_files.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "base/format.h"

namespace kvik::app {
namespace {

using workload::Plot;
using workload::Series;

constexpr double kWidth = 760;
constexpr double kHeight = 360;
constexpr double kLeft = 64;
constexpr double kRight = 200;  // for the names
constexpr double kTop = 36;
constexpr double kBottom = 48;
constexpr int kTicks = 5;
// Told apart by most colour-blind eyes (Okabe and Ito).
constexpr std::array kColours = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                 "#e69f00", "#56b4e9", "#000000", "#999999"};

std::string Escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    out += c == '"' ? "\"\"" : std::string(1, c);
  }
  return out + "\"";
}

std::string Text(double x, double y, const char* anchor, const std::string& text) {
  return Format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor) + Escaped(text) +
         "</text>\n";
}

class Chart {
 public:
  Chart(const Plot& plot, double top) : plot_(plot), top_(top) {
    bool any = false;
    for (const Series& series : plot.series) {
      for (const auto& [x, y] : series.points) {
        const double at = X(x);
        x_low_ = any ? std::min(x_low_, at) : at;
        x_high_ = any ? std::max(x_high_, at) : at;
        const double height = Y(y);
        y_low_ = any ? std::min(y_low_, height) : height;
        y_high_ = any ? std::max(y_high_, height) : height;
        any = true;
      }
    }
    x_high_ = x_high_ > x_low_ ? x_high_ : x_low_ + 1;
    if (!plot.log_y) {
      y_low_ = 0;
    }
    y_high_ = y_high_ > y_low_ ? y_high_ : y_low_ + 1;
  }

  std::string Draw() const {
    const double left = kLeft;
    const double right = kWidth - kRight;
    const double top = top_ + kTop;
    const double bottom = top_ + kHeight - kBottom;
    std::string svg = Text((left + right) / 2, top_ + 20, "middle", plot_.title);
    svg += Format("<path d=\"M%.1f %.1fV%.1fH%.1f\" fill=\"none\" stroke=\"#333\"/>\n", left, top,
                  bottom, right);
    for (int i = 0; i <= kTicks; ++i) {
      const double share = static_cast<double>(i) / kTicks;
      const double value = x_low_ + share * (x_high_ - x_low_);
      svg += Text(left + share * (right - left), bottom + 16, "middle",
                  Format("%.3g", plot_.log_x ? std::pow(10, value) : value));
      const double height = y_low_ + share * (y_high_ - y_low_);
      svg += Text(left - 6, bottom - share * (bottom - top) + 4, "end",
                  Format("%.3g", plot_.log_y ? std::pow(10, height) : height));
    }
    svg += Text((left + right) / 2, bottom + 36, "middle", plot_.x_label);
    svg += Text(8, top - 8, "start", plot_.y_label);
    for (size_t s = 0; s < plot_.series.size(); ++s) {
      const char* colour = kColours[s % kColours.size()];
      const char* dash = s < kColours.size() ? "" : " stroke-dasharray=\"5 3\"";
      svg += "<polyline fill=\"none\" stroke-width=\"1.6\" stroke=\"" + std::string(colour) + "\"" +
             dash + " points=\"";
      std::string marks;
      for (const auto& [x, y] : plot_.series[s].points) {
        const double at_x = left + (X(x) - x_low_) / (x_high_ - x_low_) * (right - left);
        const double at_y = bottom - (Y(y) - y_low_) / (y_high_ - y_low_) * (bottom - top);
        svg += Format("%.1f,%.1f ", at_x, at_y);
        marks +=
            Format("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n", at_x, at_y, colour);
      }
      svg += "\"/>\n";
      svg += plot_.marks ? marks : "";
      const double y = top + 16 * static_cast<double>(s);
      svg += Format("<path d=\"M%.1f %.1fh18\" stroke=\"%s\" stroke-width=\"2\"%s/>\n", right + 12,
                    y, colour, dash);
      svg += Text(right + 36, y + 4, "start", plot_.series[s].name);
    }
    return svg;
  }

 private:
  [[nodiscard]] double X(double x) const { return plot_.log_x ? std::log10(x) : x; }
  [[nodiscard]] double Y(double y) const { return plot_.log_y ? std::log10(y) : y; }

  const Plot& plot_;
  double top_;
  double x_low_ = 0;
  double x_high_ = 0;
  double y_low_ = 0;
  double y_high_ = 0;
};

}  // namespace

std::string PlotsCsv(std::span<const Plot> plots) {
  std::string csv = "plot,series,x,y\n";
  for (const Plot& plot : plots) {
    for (const Series& series : plot.series) {
      for (const auto& [x, y] : series.points) {
        csv += Quoted(plot.title) + "," + Quoted(series.name) + Format(",%.6g,%.6g\n", x, y);
      }
    }
  }
  return csv;
}

std::string PlotsSvg(std::span<const Plot> plots) {
  const double height = kHeight * static_cast<double>(std::max<size_t>(plots.size(), 1));
  std::string svg = Format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kWidth, height);
  double top = 0;
  for (const Plot& plot : plots) {
    svg += Chart(plot, top).Draw();
    top += kHeight;
  }
  return svg + "</svg>\n";
}

Result<void> WritePlots(const std::string& csv_path, const std::string& svg_path,
                        std::span<const Plot> plots) {
  if (!csv_path.empty()) {
    KVIK_TRY(WriteTextFile(csv_path, PlotsCsv(plots)));
  }
  if (!svg_path.empty()) {
    KVIK_TRY(WriteTextFile(svg_path, PlotsSvg(plots)));
  }
  return {};
}

Result<void> WriteTextFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) {
    return Err(ErrorCode::kUnavailable, "%s cannot be written", path.c_str());
  }
  return {};
}

}  // namespace kvik::app
