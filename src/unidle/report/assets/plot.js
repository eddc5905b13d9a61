// Exact values on the pictures of a job's figures; the pictures themselves stand in the page.

class Plots {
  constructor(report, tip) {
    Object.assign(this, { report, tip });
    for (const figure of document.querySelectorAll("[data-plot]")) this.bind(figure, report.plots[Number(figure.dataset.plot)]);
  }

  bind(figure, plot) {
    const area = figure.querySelector(".area");
    if (!plot || !area || !this.tip || !plot.points.length) return;
    const cursor = make("i", { className: "at", hidden: true });
    const order = plot.points.map((_, k) => k).sort((a, b) => plot.points[a][0] - plot.points[b][0]);
    let place = -1;
    area.append(cursor);
    const show = (at) => {
      place = Math.max(0, Math.min(at, order.length - 1));
      const [seconds, value, attempt] = plot.points[order[place]], box = area.getBoundingClientRect();
      const share = seconds / plot.seconds;
      cursor.hidden = false;
      cursor.style.left = `${100 * share}%`;
      this.fill(plot, seconds, value, attempt);
      this.tip.style.left = `${Math.max(8, Math.min(box.left + share * box.width + 12, innerWidth - this.tip.offsetWidth - 8))}px`;
      this.tip.style.top = `${Math.max(8, box.top - this.tip.offsetHeight - 4)}px`;
    };
    const hide = () => { cursor.hidden = this.tip.hidden = true; };
    area.addEventListener("pointermove", (event) => {
      const box = area.getBoundingClientRect(), seconds = (event.clientX - box.left) / box.width * plot.seconds;
      show(this.nearest(plot, order, seconds));
    });
    area.addEventListener("pointerleave", hide);
    figure.addEventListener("blur", hide);
    figure.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
      if (by === undefined) { if (event.key === "Escape") hide(); return; }
      event.preventDefault();
      show(place + by);
    });
  }

  nearest(plot, order, seconds) {
    let low = 0, high = order.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (plot.points[order[middle]][0] < seconds) low = middle + 1; else high = middle;
    }
    const before = order[Math.max(low - 1, 0)], after = order[low];
    return seconds - plot.points[before][0] < plot.points[after][0] - seconds ? Math.max(low - 1, 0) : low;
  }

  fill(plot, seconds, value, attempt) {
    const facts = make("dl", { className: "facts" });
    const at = (Number(plot.after) + seconds * 1e9) / this.report.unit;
    const rows = [
      [plot.unit, value === null ? "no finite number" : String(value)],
      ["after", duration(Math.round(seconds * 1e9))], ["at", clockTime(this.report, at)], ["attempt", String(attempt)],
    ];
    for (const [name, text] of rows) facts.append(make("dt", {}, name), make("dd", {}, text));
    this.tip.replaceChildren(facts);
    this.tip.hidden = false;
  }
}
