"""The style sheet of the report: light and dark, wide and narrow."""

STYLE = """
:root{--ink:#1c2430;--soft:#5c6b7d;--page:#f6f7f9;--card:#fff;--rule:#dde2e8;--warn:#a05a00;
--c0:#2f6fde;--c1:#d2553f;--c2:#2e9d62;--c3:#d18f1a;--c4:#8656b8}
@media (prefers-color-scheme:dark){:root{--ink:#e4e9f0;--soft:#9aa8b8;--page:#12161c;--card:#1b212a;--rule:#303945;
--warn:#e6a23c;--c0:#6ea0ff;--c1:#f0826e;--c2:#5cc98f;--c3:#e9b555;--c4:#b48be0}}
*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:1100px;margin:0 auto;padding:24px 16px}h1{margin:0;font-size:28px}h2{font-size:19px;margin:0 0 12px}
h3{font-size:15px;margin:18px 0 6px}header p{margin:2px 0 16px;color:var(--soft)}
section{background:var(--card);border:1px solid var(--rule);border-radius:8px;padding:16px;margin:16px 0}
.cards{display:flex;flex-wrap:wrap;gap:10px}.cards div{background:var(--card);border:1px solid var(--rule);
border-radius:8px;padding:10px 16px;min-width:120px}.cards b{display:block;font-size:21px}
.cards span,figcaption,.legend{color:var(--soft);font-size:13px}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;margin-bottom:14px}
th,td{text-align:left;padding:6px 10px;border-bottom:1px solid var(--rule);vertical-align:top;font-size:13.5px}
th{color:var(--soft);font-weight:600}td:not(:first-child){font-variant-numeric:tabular-nums}
code{font-size:12.5px}.missing{color:var(--warn)}figure{margin:0}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(300px,1fr));gap:16px}
.charts>*{min-width:0}svg{max-width:100%;display:block}svg text{fill:var(--soft);font-size:11px}svg .grid{stroke:var(--rule)}
polyline{fill:none;stroke-width:2}.s0{stroke:var(--c0)}.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}
.f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}.f3{fill:var(--c3)}.f4{fill:var(--c4)}
.key{display:inline-block;margin-right:16px}.key i{display:inline-block;width:10px;height:10px;margin-right:5px}
.b0{background:var(--c0)}.b1{background:var(--c1)}.b2{background:var(--c2)}.b3{background:var(--c3)}.b4{background:var(--c4)}
.pairs{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:16px}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:4px}.pair img{width:100%;display:block;border-radius:4px}
.pair figcaption{grid-column:1/3}
""".strip()
