"use strict";
// Draws the last snapshot a few times a second. Text goes in as text: names come from other people's programs.
(() => {
  const EVERY_MS = 300, LOST_AFTER = 5;
  const at = (id) => document.getElementById(id);
  let failures = 0;

  function seconds(s) {
    if (s === null || s === undefined) return "–";
    if (s >= 3600) return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
    if (s >= 60) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
    if (s >= 1) return `${s.toPrecision(3)} s`;
    return s >= 1e-3 ? `${(s * 1e3).toPrecision(3)} ms` : `${Math.round(s * 1e6)} µs`;
  }
  const count = (n) => (n === null ? "–" : Number(n.toPrecision(3)).toLocaleString("en-US"));
  const text = (id, value) => { if (at(id).textContent !== value) at(id).textContent = value; };

  function made(tag, content, name) {
    const element = document.createElement(tag);
    if (content !== undefined) element.textContent = content;
    if (name) element.className = name;
    return element;
  }

  function progress(shot) {
    const state = shot.is_over ? "killed" : shot.status;
    document.title = `${state} · ${shot.run}`;
    text("run", shot.run);
    text("state", `${state}, ${shot.ranks_expected} rank${shot.ranks_expected === 1 ? "" : "s"}` +
      (shot.epoch === null ? "" : `, epoch ${shot.epoch + 1}`));
    const total = shot.steps_total;
    text("steps", shot.steps_done.toLocaleString("en-US") + (total ? ` of ${total.toLocaleString("en-US")}` : ""));
    text("rate", count(shot.samples_per_s));
    text("step", seconds(shot.step_s));
    text("left", seconds(shot.left_s));
    at("left").parentElement.hidden = shot.left_s === null;
    const bar = at("bar");
    bar.hidden = !total;
    if (total) {
      const share = Math.min(100, 100 * shot.steps_done / total);
      bar.firstElementChild.style.width = `${share}%`;
      bar.setAttribute("aria-valuenow", share.toFixed(0));
    }
  }

  function curve(history) {
    if (history.length < 2) return;
    const top = 1.1 * Math.max(...history.map((point) => point[1])), from = history[0][0];
    const span = history[history.length - 1][0] - from || 1;
    const x = (point) => (600 * (point[0] - from) / span).toFixed(1), y = (point) => (120 - 120 * point[1] / top).toFixed(1);
    at("curve").firstElementChild.setAttribute("d", "M" + history.map((point) => `${x(point)} ${y(point)}`).join("L"));
    const rates = history.map((point) => point[1]);
    text("range", `${count(Math.min(...rates))} to ${count(Math.max(...rates))} samples/s over the last ${seconds(span)}; the axis begins at 0`);
  }

  function now(rank) {
    if (rank.ended) return "has ended";
    if (rank.alive === false) return "is dead";
    const what = rank.operation || rank.phase || "between phases";
    return rank.phase_for_s !== null && rank.phase_for_s >= 1 ? `${what}, for ${seconds(rank.phase_for_s)}` : what;
  }

  function row(rank, shown) {
    const line = made("div", undefined, rank.rank === shown.late ? "rank late" : "rank");
    const who = made("div");
    who.append(made("b", `rank ${rank.rank}`), made("small", rank.host));
    const bar = made("div", undefined, "phases");
    const longest = Math.max(...shown.snapshot.ranks.map((one) => Object.values(one.phases).reduce((a, b) => a + b, 0)));
    for (const [name, s] of Object.entries(rank.phases)) {
      if (s <= 0) continue;
      const part = made("i");
      part.style.width = `${100 * s / longest}%`;
      part.style.background = shown.colours[name] || shown.colours.other;
      part.title = `${name} ${seconds(s)}`;
      bar.append(part);
    }
    const doing = made("div", undefined, "now");
    const late = rank.late_s === null ? "" : rank.rank === shown.late ? `late by ${seconds(rank.late_s)} per step` : "";
    doing.append(made("span", `step ${rank.steps_done.toLocaleString("en-US")}, ${now(rank)}`), made("small", late));
    line.append(who, bar, doing);
    return line;
  }

  function draw(shown) {
    const shot = shown.snapshot;
    progress(shot);
    curve(shown.history);
    at("troubles").replaceChildren(...shot.troubles.map((trouble) => made("p", trouble.words)));
    const names = new Set(shot.ranks.flatMap((rank) => Object.keys(rank.phases).filter((name) => rank.phases[name] > 0)));
    at("legend").replaceChildren(...[...names].map((name) => {
      const item = made("li"), mark = made("i");
      mark.style.background = shown.colours[name] || shown.colours.other;
      item.append(mark, name === "collective" ? "blocked in collectives" : name);
      return item;
    }));
    at("ranks").replaceChildren(...shot.ranks.map((rank) => row(rank, shown)));
    text("hidden", shown.hidden);
  }

  async function look() {
    try {
      const shown = await (await fetch("snapshot.json", { cache: "no-store" })).json();
      failures = 0;
      if (shown !== null) {
        draw(shown);
        document.body.dataset.drawn = String(1 + Number(document.body.dataset.drawn || 0));
        if (shown.is_final) { document.body.dataset.ended = "yes"; return; }
      }
    } catch (error) {
      failures += 1;
      if (failures >= LOST_AFTER) {
        text("state", "allpull watch has ended: the numbers are the last that it sent");
        document.body.dataset.ended = "lost";
        return;
      }
    }
    setTimeout(look, EVERY_MS);
  }
  look();
})();
