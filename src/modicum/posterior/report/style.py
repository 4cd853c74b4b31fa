"""Style sheet of the report: light and dark, for screens, phones and print."""

CSS = """
:root { color-scheme: light dark; --ink: #1a2230; --soft: #5b6675; --paper: #ffffff;
  --card: #f5f7fa; --edge: #dde3ea; --blue: #0b5fa5; --good: #1a7f4b; --doubtful: #9a6700;
  --bad: #b42318; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa6b5; --paper: #12161c;
  --card: #1b212a; --edge: #2f3843; --blue: #6cb6ff; --good: #4ac58a; --doubtful: #e3b341;
  --bad: #ff8a80; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 0 0 .75rem; }
section { background: var(--card); border: 1px solid var(--edge); border-radius: 10px;
  padding: 1rem; margin: 1rem 0; }
.note, small { color: var(--soft); }
code, pre { font: .875em/1.45 ui-monospace, "SF Mono", Menlo, Consolas, monospace;
  overflow-wrap: anywhere; }
pre { overflow-x: auto; background: var(--paper); border: 1px solid var(--edge);
  border-radius: 6px; padding: .75rem; white-space: pre-wrap; }
dl { display: grid; grid-template-columns: minmax(7rem, 12rem) 1fr; gap: .3rem 1rem; margin: 0; }
dt { color: var(--soft); overflow-wrap: anywhere; }
dd { margin: 0; overflow-wrap: anywhere; min-width: 0; }
.light { display: inline-block; min-width: 3.4rem; text-align: center; border-radius: 1rem;
  padding: 0 .6rem; font-size: .8rem; font-weight: 600; border: 1.5px solid currentColor; }
.good { color: var(--good); } .doubtful { color: var(--doubtful); } .bad { color: var(--bad); }
.checks { display: grid; gap: .6rem; }
.check { display: grid; grid-template-columns: 4.5rem minmax(9rem, 14rem) 7rem 1fr;
  gap: .2rem .8rem; align-items: baseline; }
.figure { font-variant-numeric: tabular-nums; }
.warnings { margin: 1rem 0 0; padding-left: 1.2rem; } .warnings li { margin: .4rem 0; }
.forest { display: grid; gap: .15rem; }
.line { display: grid; grid-template-columns: minmax(0, 14rem) 1fr 4.6rem; gap: .6rem;
  align-items: center; font-size: .875rem; }
.label { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.line .figure { text-align: right; white-space: nowrap; }
.track { position: relative; height: 1.1rem; display: block; }
.zero { position: absolute; top: 0; bottom: 0; width: 1px; background: var(--soft); opacity: .6; }
.bar { position: absolute; top: .42rem; height: .26rem; border-radius: .2rem;
  background: var(--blue); opacity: .55; }
.dot { position: absolute; top: .3rem; width: .5rem; height: .5rem; margin-left: -.25rem;
  border-radius: 50%; background: var(--blue); }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(18rem, 1fr)); gap: 1rem; }
figure { margin: 0; min-width: 0; max-width: 30rem; } figcaption { font-weight: 600; }
.figures .line { grid-template-columns: minmax(0, 8rem) 1fr 4.6rem; }
svg { width: 100%; height: auto; display: block; }
svg text { font-size: 11px; fill: var(--soft); }
.grid { stroke: var(--edge); } .band { fill: var(--blue); opacity: .25; }
.curve { fill: none; stroke: var(--blue); stroke-width: 1.6; } .seen { fill: var(--ink); }
.seen-bar { fill: var(--soft); opacity: .45; }
.expected { stroke: var(--blue); stroke-width: 3; opacity: .7; }
.expected-dot { fill: var(--blue); }
.new { fill: var(--soft); opacity: .15; } .pull { stroke: var(--blue); opacity: .45; }
.mean { fill: var(--blue); } .own { fill: var(--card); stroke: var(--blue); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem .2rem 0; text-align: right; border-bottom: 1px solid var(--edge); }
th:first-child { text-align: left; font-weight: 500; }
summary { cursor: pointer; color: var(--blue); margin: .6rem 0 .3rem; }
@media (max-width: 36rem) {
  main { padding: .6rem; } section { padding: .8rem; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; }
  .check { grid-template-columns: 4.2rem 1fr auto; } .check small { grid-column: 1 / -1; }
  .line { grid-template-columns: minmax(0, 8.5rem) 1fr 4.4rem; gap: .4rem; }
  .label { white-space: normal; overflow-wrap: anywhere; line-height: 1.2; }
}
@media print { section { break-inside: avoid; } }
"""
