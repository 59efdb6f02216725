// The edited table as CSV and JSON.

// The parts of a pose in order: mirror (x to -x), rotation (counter-clockwise), scale, shift.
function partsOfPose(image) {
  const [a, c, x, b, d, y] = data.poses[image];
  const area = a * d - b * c, mirrored = area < 0;
  const [p, q] = mirrored ? [-a, -b] : [a, b];
  return { angle: (Math.atan2(c - q, p + d) * 180) / Math.PI, x, y, scale: Math.sqrt(Math.abs(area)), mirrored };
}

function rows() {
  finishSpread();
  const rejected = rejectedNames();
  return data.names.map((path, i) => {
    const label = data.labels[i], group = edits.group[i], inGroup = group !== NO_GROUP, best = graph ? spread.best[i] : NO_GROUP;
    const { angle, x, y, scale, mirrored } = partsOfPose(i);
    return {
      path, cluster: group, name: inGroup ? nameOf(group) : "", hidden: isHidden(group), confidence: data.confidences[i],
      angle: Number(angle.toFixed(2)), shift_x: x, shift_y: y, scale: Number(scale.toFixed(4)), mirrored,
      cluster_found: label, named: isNamed(group), settled: edits.settled[i] === 1,
      proposed: best === NO_GROUP ? "" : nameOf(best), probability: best === NO_GROUP ? 0 : Number(spread.share[i].toFixed(4)),
      rejected_names: rejected.has(i) ? JSON.stringify(rejected.get(i)) : "",
    };
  });
}

// Spreadsheets execute cells that start like a formula; an apostrophe in front makes them text.
function cell(value) {
  if (typeof value !== "string") return String(value);
  const safe = /^[=+\-@\t\r\n]/.test(value) ? `'${value}` : value;
  return /[",\r\n']/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function csv() {
  const all = rows(), columns = Object.keys(all[0]);
  const lines = [columns.join(","), ...all.map((row) => columns.map((column) => cell(row[column])).join(","))];
  return `\ufeff${lines.join("\r\n")}\r\n`; // the byte order mark tells spreadsheets that this is UTF-8
}

function json() {
  const clusters = groups().map((group) => ({
    cluster: group, name: nameOf(group), hidden: isHidden(group), images: sizeOf(group), found_as: partsOf(group),
  }));
  return `${JSON.stringify({ ...data.run, clusters, images: rows() }, null, 1)}\n`;
}

function download(text, name, type) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  unsaved = false;
  announce(`${name} contains ${counted(data.names.length, "image")} with your changes.`);
}

function startTable() {
  find("csv").addEventListener("click", () => download(csv(), "labels-edited.csv", "text/csv;charset=utf-8"));
  find("json").addEventListener("click", () => download(json(), "labels-edited.json", "application/json"));
  window.addEventListener("beforeunload", (event) => { if (unsaved) event.preventDefault(); });
}
