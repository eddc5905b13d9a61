// The picture as SVG, and the chosen stacks as folded text, written from the page.

const escapeXml = (text) => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
const escapeFolded = (text) => text.replace(/[\\;]/g, (c) => (c === ";" ? "\\x3b" : "\\\\")).replace(/^#/, "\\x23");

// All rows of what is laid out, also those that are scrolled away.
function svgOf(flame, describe, note) {
  const { width, rows } = flame, height = rows.length * ROW + 24;
  const parts = [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="sans-serif" font-size="${FONT}">`,
    `<rect width="100%" height="100%" fill="${flame.paper}"/>`,
  ];
  rows.forEach((row, depth) => {
    for (const { node, x, w } of row) {
      const y = flame.top(depth), [colour, ink] = flame.paint(node), room = Math.floor((w - 2 * PAD) / 6.5);
      const label = flame.graph.label(node), shown = room < 3 ? "" : label.length <= room ? label : `${label.slice(0, room - 1)}…`;
      parts.push(
        `<g><title>${escapeXml(describe(node))}</title><rect x="${x.toFixed(2)}" y="${y}" width="${Math.max(w - 0.5, 0.4).toFixed(2)}" height="${ROW - 1}" fill="${colour}"/>` +
        (shown ? `<text x="${(x + PAD).toFixed(2)}" y="${y + 14}" fill="${ink}">${escapeXml(shown)}</text>` : "") + "</g>");
    }
  });
  parts.push(`<text x="4" y="${height - 8}" fill="${flame.ink}">${escapeXml(note)}</text></svg>`);
  return parts.join("\n");
}

// One line per stack: microseconds of time, or bytes. What rounding takes from one line is carried to the next.
function foldedOf(graph, unit, quality) {
  const { stacks, now } = graph, lines = [`# unidle scope: "${quality.replaceAll('"', "'")}"`];
  const labels = Array.from(stacks.columns.function, (_, frame) => escapeFolded(stacks.label(frame, true)));
  let carried = 0;
  for (let n = 0; n < stacks.size; n++) {
    if (!(now.own[n] > 0)) continue;
    const units = Math.floor((now.own[n] + carried + unit / 2) / unit);
    carried += now.own[n] - units * unit;
    const path = [];
    for (let at = n; at; at = stacks.parent[at]) path.push(labels[stacks.frame[at]]);
    if (units > 0) lines.push(`${path.reverse().join(";") || "[no frames]"} ${units}`);
  }
  return `${lines.join("\n")}\n`;
}

function save(name, kind, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: kind }));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}
