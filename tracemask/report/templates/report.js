"use strict";
(() => {
  const started = performance.now();
  const $ = (id) => document.getElementById(id);
  const D = JSON.parse($("data").textContent);
  const AUTHORS = D.authors, FOLD = 60, SLICE = 3000, PAGE = 80;
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const u16 = (text) => { const b = bytes(text); return new Uint16Array(b.buffer, 0, b.length >> 1); };
  const u32 = (text) => { const b = bytes(text); return new Uint32Array(b.buffer, 0, b.length >> 2); };
  const el = (name, cls, text) => { const e = document.createElement(name); if (cls) e.className = cls; if (text !== undefined) e.textContent = text; return e; };
  const num = (n) => n.toLocaleString("en-US");
  const shown = (w) => (w === null ? "not a number" : w === 0 ? "0" : Math.abs(w) >= 1e-3 && Math.abs(w) < 1e4 ? String(+w.toPrecision(4)) : w.toExponential(2));
  let row, at = 0, here = -1, lastSpan = -1, lastFinding = -1;

  function decode(index) {
    const r = D.rows[index];
    if (!r.tokens) {
      r.tokens = r.wide ? u32(r.ids) : u16(r.ids);
      r.logprob = r.lp ? u16(r.lp) : null;
      r.marked = new Map(r.findings.filter((f) => f.token != null).map((f) => [f.token, f]));
    }
    return r;
  }
  const lpAt = (r, k) => {
    if (!r.logprob) return null;
    for (const [start, end, offset] of r.lpRuns) if (k >= start && k < end) { const v = r.logprob[offset + k - start]; return v === 65535 ? null : -v / 2000; }
    return null;
  };
  const piece = (r, k) => (r.pieces[k] !== undefined ? r.pieces[k] : D.vocab[r.tokens[k]][1]);
  const runAt = (r, k) => { let low = 0, high = r.runs.length - 1; while (low < high) { const mid = (low + high + 1) >> 1; if (r.runs[mid][0] <= k) low = mid; else high = mid - 1; } return low; };
  const onWeights = (r, run) => D.components.map((name, i) => [name, run[6 + i]]).filter(([, w]) => w !== 0);

  // Marks for white space are there and faint, so that words read as words.
  function spell(b, text) {
    const words = text.split(/([·→⏎\n]+)/);
    if (words.length === 1) { b.textContent = text; return; }
    words.forEach((word, i) => { if (word) b.append(i % 2 ? el("i", "", word) : word); });
  }
  function fill(box, r, start, end, whole) {
    const draw = (from) => {
      const to = whole ? end : Math.min(end, from + SLICE), part = document.createDocumentFragment();
      for (let k = from; k < to; k++) {
        const b = el("b", r.marked.has(k) ? "bad" : "");
        spell(b, piece(r, k).replaceAll("⏎", "⏎\n"));
        b.dataset.k = k;
        part.append(b);
        const f = r.marked.get(k);
        if (f && f.expected) part.append(el("span", "sampled", " ⟨" + f.expected + "⟩ "));
      }
      box.append(part);
      if (to < end) requestAnimationFrame(() => draw(to));
    };
    box.textContent = "";
    draw(start);
  }
  const lazily = new IntersectionObserver((entries) => {
    for (const e of entries) if (e.isIntersecting) { lazily.unobserve(e.target); e.target.draw(); }
  }, { rootMargin: "600px" });

  function segment(r, index) {
    const run = r.runs[index], [start, end, author, role, part, message] = run, weights = onWeights(r, run);
    const letter = author < 0 ? "X" : AUTHORS[author][0], size = end - start;
    const seg = el("div", "seg " + letter + (weights.length ? " on" : ""));
    seg.dataset.start = start;
    const names = [author < 0 ? "unknown author" : AUTHORS[author][1], role < 0 ? null : D.roles[role], part < 0 ? null : D.parts[part], message < 0 ? null : "m" + message].filter(Boolean);
    const label = el("span", "label", names.join(" · ") + " · " + num(size) + (size === 1 ? " token" : " tokens") + (weights.length ? ", in loss" + (weights.every(([, w]) => w === 1) && weights.length === 1 ? "" : ": " + weights.map(([n, w]) => n + " " + shown(w)).join(", ")) : ""));
    const text = el("span", "text");
    seg.append(label, text);
    const holds = [...r.marked.keys()].some((k) => k >= start && k < end);
    if (size > FOLD && !weights.length && !holds) {
      const peek = (a, b) => { let s = ""; for (let k = a; k < b; k++) s += piece(r, k); return s; };
      const fold = el("button", "fold", "▸ " + num(size) + " tokens, none in the loss │ " + peek(start, Math.min(end, start + 10)) + " … " + peek(Math.max(start, end - 10), end));
      fold.onclick = () => fill(text, r, start, end);
      text.append(fold);
      seg.open = () => { if (fold.isConnected) fill(text, r, start, end); };
    } else {
      text.style.minHeight = Math.ceil(size / 18) * 1.6 + "em";
      text.draw = (whole) => { text.style.minHeight = ""; fill(text, r, start, end, whole); text.drawn = true; };
      seg.print = () => { if (!text.drawn) { lazily.unobserve(text); text.draw(true); } };
      lazily.observe(text);
      seg.open = () => { if (!text.drawn) { lazily.unobserve(text); text.draw(); } };
    }
    return seg;
  }

  function showRow(index) {
    at = Math.max(0, Math.min(D.rows.length - 1, index)); lastSpan = lastFinding = -1; here = -1;
    $("row").value = String(at);
    row = decode(at);
    $("rowtitle").textContent = "row " + row.index + (row.id ? " · " + row.id : "");
    const trained = row.runs.reduce((n, run) => n + (onWeights(row, run).length ? run[1] - run[0] : 0), 0);
    $("rowfacts").textContent = [num(row.n) + " tokens", num(trained) + " in the loss (" + (row.n ? (100 * trained / row.n).toFixed(1) : "0") + " %)", ...row.facts].join("  ·  ");
    const list = $("rowfindings"); list.textContent = "";
    for (const f of row.findings) list.append(findingLine(f, at));
    lazily.disconnect(); $("tokens").textContent = "";
    const mine = row, more = () => {
      if (row !== mine) return;
      build($("tokens").children.length + PAGE);
      if ($("tokens").children.length < row.runs.length) requestAnimationFrame(more);
    };
    more();
  }
  // Segments up to `count`, appended in order; long rows are built a page a frame.
  function build(count) {
    const box = $("tokens"), part = document.createDocumentFragment(), upTo = Math.min(count, row.runs.length);
    for (let i = box.children.length; i < upTo; i++) part.append(segment(row, i));
    box.append(part);
  }

  function go(token, flash, then) {
    const index = runAt(row, token);
    build(index + 1);
    const seg = $("tokens").children[index];
    if (!seg) return;
    seg.open();
    const find = (tries) => {
      const b = seg.querySelector('b[data-k="' + token + '"]');
      if (!b && tries) { requestAnimationFrame(() => find(tries - 1)); return; }
      (b || seg).scrollIntoView({ block: "center" });
      if (b && flash) { document.querySelectorAll("b.here").forEach((x) => x.classList.remove("here")); b.classList.add("here"); }
      if (b && then) then(b);
    };
    here = token;
    find(120);
  }

  function findingLine(f, rowIndex) {
    const p = el("p"), a = el("a", "", "row " + D.rows[rowIndex].index + (f.token != null ? ", token " + f.token : ""));
    a.href = "#row=" + rowIndex + (f.token != null ? "&token=" + f.token : "");
    p.append(el("span", "code " + f.severity, f.code), " ", a, " ", f.message);
    return p;
  }

  function nextSpan() {
    const spans = row.runs.map((run, i) => i).filter((i) => onWeights(row, row.runs[i]).length && (i === 0 || !onWeights(row, row.runs[i - 1]).length));
    if (!spans.length) return;
    lastSpan = (lastSpan + 1) % spans.length;
    go(row.runs[spans[lastSpan]][0], true);
  }
  function nextFinding() {
    const all = D.rows.flatMap((r, i) => r.findings.map((f) => [i, f]));
    if (!all.length) return;
    lastFinding = (lastFinding + 1) % all.length;
    const keep = lastFinding, [i, f] = all[keep];
    if (i !== at) showRow(i);
    lastFinding = keep;
    go(f.token ?? 0, true);
  }

  function step(by) {
    if (!row.n) return;
    const token = Math.max(0, Math.min(row.n - 1, here < 0 ? 0 : here + by));
    go(token, true, (b) => { const place = b.getBoundingClientRect(); tell(b, place.left, place.bottom - 8); });
  }
  function tip(event) {
    const b = event.target.closest && event.target.closest("b[data-k]");
    if (b) tell(b, event.clientX, event.clientY); else $("tip").hidden = true;
  }
  function tell(b, x, y) {
    const box = $("tip");
    const k = +b.dataset.k, run = row.runs[runAt(row, k)], entry = D.vocab[row.tokens[k]], lp = lpAt(row, k), f = row.marked.get(k);
    const lines = ["token " + k + "   id " + entry[0], "bytes " + (entry[2] || "(added token)"),
      "author " + (run[2] < 0 ? "unknown" : AUTHORS[run[2]][1]) + "   role " + (run[3] < 0 ? "—" : D.roles[run[3]]) + "   part " + (run[4] < 0 ? "—" : D.parts[run[4]]),
      ...D.components.map((name, i) => "weight " + name + " " + shown(run[6 + i])),
      "log-prob " + (lp === null ? "—" : lp.toFixed(3) + "   p " + Math.exp(lp).toFixed(3))];
    const name = $("normalizer").value, scale = row.norm[name];
    if (scale !== undefined) lines.push(name + ": " + shown(onWeights(row, run).reduce((s, [, w]) => s + w, 0) * scale) + " of the loss");
    if (f) lines.push(f.code + " " + f.message);
    box.textContent = lines.join("\n");
    box.hidden = false;
    box.style.left = Math.max(0, Math.min(x + 14, innerWidth - box.offsetWidth - 8)) + "px";
    box.style.top = Math.max(0, Math.min(y + 16, innerHeight - box.offsetHeight - 8)) + "px";
  }

  function overview() {
    $("facts").textContent = D.facts.join("  ·  ");
    const table = el("table"), most = Math.max(1, ...D.counts.map((c) => c[2]));
    const head = el("tr"); for (const name of ["author", "role", "tokens", "in loss", "weight per token and in all", ""]) head.append(el("th", "", name));
    table.append(head);
    const scale = D.totals[$("normalizer").value] || {};
    for (const [author, role, n, on] of D.counts) {
      const tr = el("tr"), letter = author < 0 ? "X" : AUTHORS[author][0];
      tr.append(el("td", "c" + letter, (author < 0 ? "?" : letter + " " + AUTHORS[author][1])), el("td", "", role < 0 ? "—" : D.roles[role]));
      tr.append(el("td", "n", num(n)), el("td", "n", num(on)));
      const total = scale[author + "/" + role] || 0;
      tr.append(el("td", "n", on ? shown(total / on) + " · " + shown(total) : "—"));
      const cell = el("td", "c" + letter), bar = el("span", "bar" + (on ? " in" : "")); bar.style.width = Math.max(1, Math.round(300 * n / most)) + "px"; cell.append(bar); tr.append(cell);
      table.append(tr);
    }
    $("bars").textContent = ""; $("bars").append(table);
  }

  function followHash() {
    const where = new URLSearchParams(location.hash.slice(1));
    if (where.has("row")) showRow(+where.get("row") || 0);
    if (where.has("token")) go(+where.get("token") || 0, true);
  }

  for (const name of D.normalizers) $("normalizer").append(new Option(name, name));
  D.rows.forEach((r, i) => $("row").append(new Option(r.index + (r.id ? " " + r.id : ""), String(i))));
  const list = $("findings");
  if (!D.findings.length) list.append(el("p", "dim", D.checked ? "none" : "not checked"));
  for (const g of D.findings) {
    const box = el("details"), head = el("summary");
    head.append(el("span", "code " + g.severity, (g.severity ? g.severity + " " : "") + g.code), " " + g.name + " · " + num(g.count) + (g.count === 1 ? " place" : " places") + (g.rows ? " in " + num(g.rows) + (g.rows === 1 ? " row" : " rows") : "") + (g.cause ? " · one cause: " + g.cause : ""));
    box.append(head);
    for (const [rowIndex, f] of g.examples) box.append(rowIndex < 0 ? el("p", "", f.message) : findingLine(f, rowIndex));
    list.append(box);
  }
  $("row").onchange = () => showRow(+$("row").value);
  $("prev").onclick = () => showRow(at - 1);
  $("next").onclick = () => showRow(at + 1);
  $("span").onclick = nextSpan;
  $("finding").onclick = nextFinding;
  $("normalizer").onchange = overview;
  $("theme").onclick = () => {
    const dark = document.documentElement.classList.contains("dark") || (!document.documentElement.classList.contains("light") && matchMedia("(prefers-color-scheme: dark)").matches);
    document.documentElement.className = dark ? "light" : "dark";
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const action = { n: nextSpan, f: nextFinding, r: () => showRow(at + 1), p: () => showRow(at - 1), d: () => $("theme").click(), ArrowRight: () => step(1), ArrowLeft: () => step(-1), Escape: () => { $("tip").hidden = true; } }[event.key];
    if (action) { event.preventDefault(); action(); }
  });
  $("tokens").addEventListener("mousemove", tip);
  $("tokens").addEventListener("mouseleave", () => { $("tip").hidden = true; });
  window.addEventListener("hashchange", followHash);
  window.addEventListener("beforeprint", () => { build(row ? row.runs.length : 0); for (const seg of $("tokens").children) if (seg.print) seg.print(); });
  overview();
  if (D.rows.length) showRow(0);
  followHash();
  document.documentElement.dataset.ready = (performance.now() - started).toFixed(1);
})();
