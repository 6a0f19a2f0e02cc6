"use strict";
// Each curve has a table of its limits. The slider chooses a row: its cells fill the sentence, and the points of the
// chart's lines say where the mark belongs. The script computes no number.
for (const article of document.querySelectorAll("[data-curve]")) {
  const rows = article.querySelector("details tbody").rows;
  const answer = article.querySelector(".answer");
  const controls = article.querySelector(".controls");
  const slider = controls.querySelector("input");

  const show = (place) => {
    slider.value = place;
    const cells = rows[place].cells;
    for (const slot of answer.querySelectorAll("[data-cell]")) {
      slot.textContent = cells[slot.dataset.cell].textContent;
    }
    slider.setAttribute("aria-valuetext", answer.textContent);
    name(place);
    for (const chart of article.querySelectorAll("svg")) move(chart, place);
  };

  // A row has the last limit that hits its client. The rows begin with the clients that the highest limits hit.
  const hits = article.querySelector("[data-hits]");
  const file = Number(article.dataset.curve);
  const name = (place) => {
    if (!hits) return;
    const state = place < file ? "lower" : place > file ? "higher" : "file";
    const [from, to] = [Math.min(place, file), place === file ? Infinity : Math.max(place, file)];
    const all = [...hits.querySelectorAll("[data-last]")];
    const chosen = all.filter((row) => row.dataset.last >= from && row.dataset.last < to);
    const shown = new Set(state === "lower" ? chosen.slice(-50) : chosen.slice(0, 50));
    for (const row of all) row.hidden = !shown.has(row);
    for (const text of hits.querySelectorAll("[data-state]")) text.hidden = text.dataset.state !== state;
    hits.querySelector(".scroll").hidden = !shown.size;
  };

  const move = (chart, place) => {
    const points = [...chart.querySelectorAll("[data-line]")].map((line) => line.points[place]);
    const x = points[0].x;
    chart.querySelectorAll("[data-dot]").forEach((dot, number) => {
      dot.setAttribute("cx", x);
      dot.setAttribute("cy", points[number].y);
    });
    const line = chart.querySelector("[data-limit]");
    line.setAttribute("x1", x);
    line.setAttribute("x2", x);
    const value = chart.querySelector("[data-value]");
    value.setAttribute("x", x);
    value.textContent = rows[place].cells[0].textContent.split(" ")[0];
    const beyond = chart.querySelector("[data-beyond]");
    if (beyond) {
      beyond.setAttribute("x", x);
      beyond.setAttribute("width", Math.max(beyond.dataset.beyond - x, 0));
    }
  };

  for (const chart of article.querySelectorAll("svg")) {
    const points = chart.querySelector("[data-line]").points;
    const follow = (event) => {
      const x = event.clientX - chart.getBoundingClientRect().left;
      let nearest = 0;
      for (let place = 1; place < points.numberOfItems; place++) {
        if (Math.abs(points[place].x - x) < Math.abs(points[nearest].x - x)) nearest = place;
      }
      show(nearest);
    };
    chart.classList.add("dragged");
    chart.addEventListener("pointerdown", follow);
    chart.addEventListener("pointermove", (event) => event.buttons && follow(event));
  }

  slider.addEventListener("input", () => show(Number(slider.value)));
  controls.querySelector("button").addEventListener("click", () => show(Number(article.dataset.curve)));
  controls.hidden = false;
  show(Number(article.dataset.curve));
}
