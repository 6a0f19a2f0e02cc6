"use strict";
(() => {
  const EVERY = 2000, LATE = 5000, POINTS = 90, HEIGHT = 30;
  const DATA = location.pathname.replace(/\/?$/, "/state.json");  // a proxy may have changed the path
  const id = name => document.getElementById(name);
  const SVG = "http://www.w3.org/2000/svg";
  const SWITCH = {
    on: ["good", "Limits are enforced"],
    shadow: ["warn", "Switched to shadow: nothing is denied"],
    off: ["bad", "Switched off: all requests pass"],
  };
  const STORES = { redis: "Redis", rediss: "Redis", unix: "Redis", memory: "Memory", lmdb: "lmdb" };
  const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

  // Names may come from clients. They are set through textContent only. Invisible characters, and those that change
  // the direction of writing, are shown as escapes.
  const clean = text => String(text).replace(HIDDEN, each => "\\u" + each.charCodeAt(0).toString(16).padStart(4, "0"));
  const set = (element, text) => { if (element.textContent !== text) element.textContent = text; };
  const say = (name, text) => set(id(name), clean(text));

  const digits = value => value >= 100 ? 0 : value >= 10 ? 1 : 2;
  const number = (value, most = digits(value)) =>
    value.toLocaleString("en", { maximumFractionDigits: most });
  const rate = value => value > 0 && value < .01 ? "< 0.01" : number(value);

  function duration(seconds) {
    const whole = Math.max(0, Math.ceil(seconds));
    if (whole < 120) return whole + " s";
    if (whole < 7200) return Math.round(whole / 60) + " min";
    if (whole < 172800) return Math.round(whole / 3600) + " h";
    return Math.round(whole / 86400) + " days";
  }

  // A line of at most 90 points. The newest is at the right, and 0 at the bottom.
  function draw(svg, values) {
    const top = Math.max(0, ...values) || 1;
    const last = values.length - 1;
    const points = values.map((value, index) =>
      (POINTS - last + index - .5).toFixed(1) + " " + (HEIGHT - 1 - value / top * (HEIGHT - 3)).toFixed(2));
    const line = points.length ? "M" + points.join("L") : "";
    const right = (POINTS - .5).toFixed(1), left = (POINTS - last - .5).toFixed(1);
    const area = line && line + "L" + right + " " + HEIGHT + "L" + left + " " + HEIGHT + "Z";
    const paths = [["base", "M0 " + (HEIGHT - .5) + "H" + POINTS], ["area", area], ["top", line]];
    paths.forEach(([name, d], index) => {
      const path = svg.children[index] || svg.appendChild(document.createElementNS(SVG, "path"));
      path.setAttribute("class", name);
      path.setAttribute("d", d);
    });
  }

  function chart(name, counts, step) {
    const values = counts.map(count => count / step);
    const svg = id(name + "-line"), most = Math.max(0, ...values);
    draw(svg, values);
    const minutes = Math.max(1, Math.round(values.length * step / 60));
    svg.setAttribute("aria-label", `The last ${minutes} minutes: at most ${rate(most)} a second`);
    say(name + "-top", "at most " + rate(most));
  }

  // Fill a table. Cells are changed only where their text changes, so that a selection stays.
  function fill(name, rows) {
    const table = id(name), body = table.tBodies[0];
    const labels = [...table.tHead.rows[0].cells].map(cell => cell.textContent);
    say(name + "-count", String(rows.length));
    table.hidden = rows.length === 0;
    id(name + "-none").hidden = rows.length > 0;
    while (body.rows.length > rows.length) body.deleteRow(-1);
    rows.forEach((cells, at) => {
      let row = body.rows[at];
      if (!row) {
        row = body.insertRow();
        row.setAttribute("role", "row");
      }
      cells.forEach((cell, column) => {
        let td = row.cells[column];
        if (!td) {
          td = row.insertCell();
          td.setAttribute("role", "cell");
          td.dataset.label = labels[column];
          td.appendChild(document.createElement("span"));
        }
        const look = cell.look || "";
        if (td.className !== look) td.className = look;
        const span = td.firstChild;
        set(span, clean(cell.text));
        span.className = cell.badge ? "badge " + cell.badge : "";
        if (cell.tag != null) {
          if (!td.children[1]) td.append(" ", document.createElement("span"));
          const tag = td.children[1];
          set(tag, cell.tag);
          tag.className = "badge warn tag";
          tag.hidden = !cell.tag;
        }
      });
    });
  }

  function show(state) {
    const several = new Set(state.rules.map(rule => rule.domain)).size > 1;
    const named = (domain, rule) => several && domain ? domain + "/" + rule : rule;
    say("domain", state.domain);
    document.title = "Rate limits: " + clean(state.domain);
    say("version", state.version === "given" ? "from code" : (state.version || "without a version").slice(0, 20));
    say("processes", state.shared
      ? state.processes + (state.processes === 1 ? " process" : " processes")
      : "only this process is shown");
    const [look, words] = SWITCH[state.switch] || ["warn", "Switch: " + state.switch];
    id("switch").className = "badge " + look;
    say("switch", words);

    const { requests, denials } = state.rates;
    say("requests", rate(requests));
    say("denials", rate(denials));
    const sum = counts => counts.reduce((one, other) => one + other, 0);
    const { step, requests: asked, denials: denied } = state.series;
    const minutes = Math.max(1, Math.round(asked.length * step / 60));
    say("share", sum(denied) ? `· ${number(sum(denied), 0)} of ${number(sum(asked), 0)} in ${minutes} min` : "");
    chart("requests", state.series.requests, state.series.step);
    chart("denials", state.series.denials, state.series.step);

    const store = state.store;
    say("store", STORES[store.kind] || store.kind);
    say("latency", !store.up ? "unavailable" : store.latency_ms == null ? "up" : "up · " + number(store.latency_ms) + " ms");
    id("latency").className = store.up ? "quiet" : "badge bad";
    const measured = state.load != null;
    say("load", measured ? number(state.load * 100, 0) + " %" : "–");
    say("load-note", measured ? "" : "not measured: no rule needs it");
    const bar = id("load-bar");
    bar.toggleAttribute("hidden", !measured);
    const path = bar.firstChild || bar.appendChild(document.createElementNS(SVG, "path"));
    path.setAttribute("d", "M0 0H" + Math.min(1, state.load || 0) * 100 + "V6H0Z");

    fill("limited", state.limited.map(each => [
      { text: each.client, look: "client" },
      { text: named(each.domain, each.rule), tag: each.shadow ? "shadow" : "" },
      { text: each.reason, badge: each.reason === "banned" ? "bad" : "warn" },
      { text: number(each.denials, 0), look: "n" },
      { text: duration(state.at - each.since) + " ago", look: "n" },
      { text: each.until == null ? "no end" : duration(each.until - state.at), look: "n" },
    ]));

    const figure = (value, look = "n") => ({ text: value ? rate(value) : "0", look: value ? look : "n zero" });
    fill("rules", state.rules.map(rule => {
      const { allowed, over, delayed, denied, shadow_denied } = rule.rates;
      return [
        { text: named(rule.domain, rule.name), look: "name", tag: rule.shadow ? "shadow" : "" },
        { text: rule.limits.join(", ") },
        figure(allowed),
        figure(over),
        figure(delayed),
        shadow_denied ? { text: `${denied ? rate(denied) + " " : ""}(${rate(shadow_denied)})`, look: "n" } : figure(denied),
        { text: number(rule.bans, 0), look: rule.bans ? "n" : "n zero" },
      ];
    }));
  }

  let timer = 0, busy = false, shown = 0, trouble = "";

  function note() {
    const age = performance.now() - shown;
    const late = shown > 0 && age > LATE;
    say("fresh", document.hidden ? "Paused" : !shown ? "Loading…" : late ? "Stale" : "Live");
    const seconds = late ? " These numbers are " + duration(age / 1000) + " old." : "";
    const text = trouble ? trouble + seconds : late ? "The server does not answer." + seconds : "";
    id("trouble").hidden = text === "";
    say("trouble", text);
    id("main").classList.toggle("old", late || !shown && trouble !== "");
  }

  async function refusal(answer) {
    if (answer.status === 401) return "The token is no longer right. Reload this page.";
    if (answer.status === 429) return (await answer.text()).slice(0, 200);
    return "The server answered with status " + answer.status + ".";
  }

  async function refresh() {
    if (busy || document.hidden) return;
    busy = true;
    let again = true;
    let problem = "The server does not answer.";
    try {
      const answer = await fetch(DATA, { cache: "no-store", redirect: "error", signal: AbortSignal.timeout(LATE) });
      problem = answer.ok ? "The answer of the server cannot be read." : await refusal(answer);
      again = answer.status !== 401;  // otherwise each try would count as a wrong attempt
      if (answer.ok) {
        show(await answer.json());
        shown = performance.now();
        problem = "";
      }
    } catch {
      // `problem` has the reason already
    }
    trouble = problem;
    busy = false;
    note();
    clearTimeout(timer);
    if (again && !document.hidden) timer = setTimeout(refresh, EVERY);
  }

  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    note();
    refresh();
  });
  setInterval(() => { if (!document.hidden) note(); }, 1000);
  refresh();
})();
