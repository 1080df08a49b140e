// The style sheet of the HTML report. Colours carry no meaning that words, signs or patterns do not carry too.
#pragma once

#include <string_view>

namespace headrace::detail {

inline constexpr std::string_view kReportStyle = R"css(
:root {
  color-scheme: light dark;
  --paper: #fcfbf9; --panel: #f4f2ed; --ink: #1b2126; --soft: #59626b; --rule: #dfdbd3;
  --water: #0d6b7a; --water-pale: #b9dbe0; --good: #0d6b7a; --bad: #a23a2e; --doubt: #8a5a00;
  --c0: #b3701a; --c1: #d9b777; --c2: #2f8f9d; --c3: #1f4e6b; --c4: #7d5a8c; --c5: #a7a39a;
  --c6: #7f9a5b; --c7: #b5697b;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #13181c; --panel: #1b2227; --ink: #e9e7e2; --soft: #a2abb3; --rule: #333c43;
    --water: #67c6d3; --water-pale: #1f4f58; --good: #67c6d3; --bad: #f0917f; --doubt: #e6b45c;
    --c0: #e0a24c; --c1: #a58a55; --c2: #4fb3c1; --c3: #5a94c0; --c4: #b292c4; --c5: #6f7880;
    --c6: #9dbb7a; --c7: #cf8496;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", "DejaVu Sans", sans-serif;
  font-variant-numeric: tabular-nums lining-nums; overflow-wrap: anywhere;
}
main, footer { max-width: 62rem; margin: 0 auto; padding: 0 clamp(1rem, 4vw, 2.5rem); }
header { padding: clamp(2rem, 6vw, 4rem) 0 0; }
.eyebrow { margin: 0 0 .75rem; color: var(--soft); font-size: .875rem; letter-spacing: .01em; }
.eyebrow b { color: var(--ink); font-weight: 600; }
h1 {
  margin: 0; max-width: 26ch; font-size: clamp(1.75rem, 1.2rem + 2.6vw, 2.875rem); line-height: 1.14; font-weight: 650;
  letter-spacing: -.022em; text-wrap: balance;
}
.lede { margin: 1rem 0 0; max-width: 64ch; color: var(--soft); font-size: 1.0625rem; text-wrap: pretty; }
.stats {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: 1.5rem 2rem; margin: 2.25rem 0 0;
  padding: 1.5rem 0 0; border-top: 2px solid var(--ink);
}
.positive .stats { border-color: var(--water); }
.stats dt { color: var(--soft); font-size: .875rem; }
.stats dd { margin: .125rem 0 0; }
.stats .value { display: block; font-size: 1.75rem; line-height: 1.2; font-weight: 600; letter-spacing: -.015em; }
.positive .stats .key .value { color: var(--water); }
.stats .note { display: block; margin-top: .125rem; color: var(--soft); font-size: .875rem; }
.stats .unavailable { font-size: 1.125rem; font-weight: 400; letter-spacing: 0; }
section { margin: 3.5rem 0 0; }
h2 { margin: 0 0 .375rem; font-size: 1.3125rem; line-height: 1.3; font-weight: 620; letter-spacing: -.01em; }
h3 { margin: 1.75rem 0 .5rem; font-size: 1rem; font-weight: 620; }
section > p { margin: 0 0 1.25rem; max-width: 68ch; color: var(--soft); }
figure { margin: 1.25rem 0 0; }
svg { display: block; max-width: 100%; }
svg text { fill: var(--ink); font-size: 14px; }
svg .figure { text-anchor: end; fill: var(--ink); font-variant-numeric: tabular-nums; }
.waterfall text, .split > text, .timeline text { paint-order: stroke; stroke: var(--paper); stroke-width: 5px; stroke-linejoin: round; }
.waterfall .total { fill: var(--c5); }
.waterfall .best { fill: var(--water); }
.waterfall .rise { fill: url(#rise-pattern); stroke: var(--water); stroke-width: 1.5px; }
.waterfall .lead { stroke: var(--soft); stroke-width: 1px; stroke-dasharray: 2 3; }
.ground { fill: var(--water-pale); }
.stroke { fill: none; stroke: var(--water); stroke-width: 1.25px; }
.part { stroke: var(--paper); stroke-width: 1.5px; }
.part-0 { fill: url(#part-0); } .part-1 { fill: url(#part-1); } .part-2 { fill: var(--c2); }
.part-3 { fill: url(#part-3); } .part-4 { fill: url(#part-4); } .part-5 { fill: url(#part-5); }
.k0 { fill: var(--c0); } .k1 { fill: var(--c1); } .k3 { fill: var(--c3); } .k4 { fill: var(--c4); } .k5 { fill: var(--c5); }
.line { fill: none; stroke: var(--paper); stroke-opacity: .38; stroke-width: 1.25px; }
.dot { fill: var(--ink); fill-opacity: .55; }
.split .inside {
  text-anchor: middle; fill: var(--ink); font-size: 13px; font-weight: 600; stroke: var(--paper); stroke-width: 4px;
}
.patterns { position: absolute; width: 0; height: 0; }
.swatch { display: inline-block; margin-right: .5rem; vertical-align: -1px; }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); gap: .5rem 2.5rem; }
.curves figure { margin: 0; }
.curve text { font-size: 12px; fill: var(--soft); }
.curve .grid { stroke: var(--rule); }
.curve .trace {
  fill: none; stroke: var(--water); stroke-width: 2px; vector-effect: non-scaling-stroke; stroke-linejoin: round;
  stroke-linecap: round;
}
.curve circle { fill: var(--paper); stroke: var(--water); stroke-width: 2px; }
.memory text { font-size: 12px; fill: var(--soft); }
.memory .grid { stroke: var(--rule); }
.memory path { stroke: var(--paper); stroke-width: .5px; vector-effect: non-scaling-stroke; }
.memory .inside {
  text-anchor: middle; fill: var(--ink); font-size: 13px; font-weight: 600; paint-order: stroke; stroke: var(--paper);
  stroke-width: 4px; stroke-linejoin: round;
}
.area-0 { fill: var(--c0); } .area-1 { fill: var(--c1); } .area-2 { fill: var(--c2); } .area-3 { fill: var(--c3); }
.area-4 { fill: var(--c4); } .area-5 { fill: var(--c5); } .area-6 { fill: var(--c6); } .area-7 { fill: var(--c7); }
.memory-table { margin-top: 1rem; }
.span-thread { fill: var(--panel); } .span-wait { fill: var(--rule); } .span-work { fill: var(--water-pale); }
.span-operator { fill: var(--c2); }
.timeline text { font-size: 13px; }
.timeline .thread { font-weight: 600; }
.timeline .scale { font-size: 12px; fill: var(--soft); }
.timeline .grid { stroke: var(--rule); }
.timeline .part { stroke: none; }
.flame text {
  font-size: 12px; paint-order: stroke; stroke: var(--paper); stroke-width: 3px; stroke-linejoin: round;
}
.flame .part { stroke-width: 1px; }
.statistics { margin-top: 1rem; }
.pairs-chart text { font-size: 12px; fill: var(--soft); }
.pairs-chart .band { fill: var(--water-pale); }
.pairs-chart .limit { stroke: var(--rule); }
.pairs-chart .zero { stroke: var(--soft); stroke-dasharray: 4 3; }
.pairs-chart .middle { stroke: var(--water); stroke-width: 1.5px; }
.pairs-chart circle { fill: var(--ink); fill-opacity: .6; }
.cache-chart .found { fill: var(--water); } .cache-chart .missed { fill: var(--rule); }
.interval { margin: .25rem 0 0; }
.interval .rail { stroke: var(--rule); }
.interval .zero { stroke: var(--soft); }
.interval .whisker { stroke: currentColor; stroke-width: 3px; }
.interval circle { fill: var(--paper); stroke: currentColor; stroke-width: 2.5px; }
.interval .pair { fill: currentColor; fill-opacity: .4; stroke: none; }
table { width: 100%; border-collapse: collapse; font-size: .9375rem; }
caption { text-align: left; color: var(--soft); font-size: .875rem; padding-bottom: .375rem; }
th, td { padding: .5rem 1rem .5rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--rule); }
th:last-child, td:last-child { padding-right: 0; }
thead th { color: var(--soft); font-size: .8125rem; font-weight: 500; vertical-align: bottom; }
tbody th { font-weight: 500; }
.number { text-align: right; white-space: nowrap; }
.split-table { margin-top: 1rem; }
.split-table th { overflow-wrap: normal; }
.split-table small { display: inline-block; min-width: 4.25em; color: var(--soft); font-size: .875rem; }
.changes { table-layout: fixed; margin-top: .5rem; }
.changes th, .changes td { padding-top: .875rem; padding-bottom: .875rem; }
.changes thead th { padding-top: 0; padding-bottom: .375rem; }
.changes .what { width: 33%; } .changes .gain { width: 25%; } .changes .pairs { width: 8%; }
.changes tbody th { font-weight: 400; }
.name { display: block; font-weight: 600; }
.detail { display: block; color: var(--soft); font-size: .875rem; }
.tag { display: inline-block; margin-bottom: .25rem; font-size: .8125rem; font-weight: 600; }
.kept { color: var(--good); } .refused, .failed { color: var(--bad); } .inconclusive { color: var(--doubt); }
.changes .gain b { color: var(--ink); font-weight: 600; }
.changes .gain small { display: block; color: var(--soft); font-size: .875rem; white-space: nowrap; }
code, pre { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", "DejaVu Sans Mono", monospace; }
code { font-size: .875em; }
pre {
  margin: .75rem 0 0; padding: 1rem 1.125rem; background: var(--panel); border-radius: 6px; font-size: .9375rem;
  white-space: pre-wrap;
}
pre code { font-size: inherit; }
pre span { display: inline-block; max-width: 100%; }
details { margin: .875rem 0 0; font-size: .9375rem; }
summary { width: fit-content; color: var(--soft); cursor: pointer; font-size: .875rem; }
summary:hover { color: var(--ink); }
:focus-visible { outline: 2px solid var(--water); outline-offset: 3px; border-radius: 2px; }
details table { margin-top: .5rem; }
.findings { margin: 1rem 0 0; padding: 0; list-style: none; }
.findings li { padding: .875rem 0; border-top: 1px solid var(--rule); max-width: 72ch; }
.findings b { display: block; font-weight: 600; }
.findings span { color: var(--soft); }
.differs { color: var(--doubt); font-weight: 600; }
.unavailable { color: var(--soft); font-style: italic; }
.settings { table-layout: fixed; }
.settings .key { width: 34%; } .settings .asked { width: 22%; }
.environment th { width: 34%; color: var(--soft); font-weight: 400; }
footer { margin-top: 4rem; padding-top: 1.25rem; padding-bottom: 3rem; color: var(--soft); font-size: .875rem; }
footer p { margin: 0; padding-top: 1.25rem; border-top: 1px solid var(--rule); }
@media (max-width: 44rem) {
  section { margin-top: 2.75rem; }
  .stats { grid-template-columns: 1fr 1fr; gap: 1.25rem; }
  .stats .value { font-size: 1.4375rem; }
  .stack, .stack tbody, .stack tr, .stack th, .stack td { display: block; width: auto; padding: 0; border: 0; }
  .stack thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .stack tr { padding: .875rem 0; border-top: 1px solid var(--rule); }
  .stack tbody th, .stack td { padding: 0 0 .25rem; }
  .stack .what, .stack .gain, .stack .pairs, .stack .key, .stack .asked { width: auto; }
  .stack .pairs { text-align: left; }
  details { overflow-x: auto; }
  .stack td[data-label]::before { content: attr(data-label) " "; color: var(--soft); font-size: .875rem; }
  .changes tr { padding: 1rem 0; }
  .split-table small { display: block; }
  th, td { padding-right: .625rem; }
}
@media print {
  :root {
    --paper: #fff; --panel: #f3f3f3; --ink: #000; --soft: #444; --rule: #bbb; --water: #0d6b7a; --water-pale: #cfe5e8;
    --good: #0d6b7a; --bad: #a23a2e; --doubt: #6d4700;
  }
  body { font-size: 10.5pt; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  main, footer { max-width: none; padding: 0; }
  header { padding-top: 0; }
  section { margin-top: 1.75rem; }
  figure, tr, .findings li, .stats, svg { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
}
)css";

}  // namespace headrace::detail
