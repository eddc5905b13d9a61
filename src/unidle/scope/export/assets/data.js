// What the file carries, and how its numbers are written.

async function readProfile() {
  const [json, raw] = await Promise.all([inflated("data"), inflated("columns")]);
  const told = JSON.parse(new TextDecoder().decode(json));
  const columns = {};
  let at = 0;
  for (const [name, kind, length] of told.columns) { // doubles come first, so each column is aligned
    const make = kind === "f8" ? Float64Array : Uint32Array;
    columns[name] = new make(raw, at, length);
    at += length * make.BYTES_PER_ELEMENT;
  }
  return new Stacks(told, columns);
}

function timeText(ns) {
  if (ns === 0) return "0";
  for (const [unit, name] of [[1e9, "s"], [1e6, "ms"], [1e3, "us"]]) {
    if (ns >= unit) return `${(ns / unit).toLocaleString("en", { maximumSignificantDigits: Math.max(3, String(Math.floor(ns / unit)).length) })} ${name}`;
  }
  return `${Math.round(ns)} ns`;
}

function bytesText(bytes) {
  for (const [unit, name] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (bytes >= unit) return `${(bytes / unit).toFixed(bytes / unit < 10 ? 2 : 1)} ${name}`;
  }
  return `${bytes} B`;
}

function percentText(part, whole) {
  if (!(whole > 0) || part === 0) return "0 %";
  const share = 100 * part / whole;
  return share > 0 && share < 0.1 ? "<0.1 %" : `${share.toFixed(1)} %`;
}

function pointsText(points) {
  if (Math.abs(points) < 0.05) return "±0.0";
  return `${points > 0 ? "+" : "−"}${Math.abs(points).toFixed(1)}`;
}

const wholeText = (value) => Math.round(value).toLocaleString("en");
