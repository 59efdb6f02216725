// Work is kept in the browser under the name of the run, written as labels.csv and read from it.
const PLACE = `unpose ${data.run.key}`;

function keep() {
  const diff = difference(edits, found);
  for (const steps of [past.length, 50, 0]) { // a browser keeps a few megabytes; if that is too little, fewer steps can be undone
    try {
      localStorage.setItem(PLACE, JSON.stringify({ now: diff, past: past.slice(past.length - steps), future: steps ? future : [], seconds: pace.seconds }));
      unsaved = false;
      return;
    } catch { /* try with less */ }
  }
}

function recall() {
  try {
    const kept = JSON.parse(localStorage.getItem(PLACE));
    if (!kept) return;
    edits = restored(found, kept.now);
    past.push(...kept.past);
    future.push(...kept.future);
    pace.seconds = kept.seconds;
  } catch { edits = found; }
}

// The rows of a CSV file, as objects by the names of its columns.
function readCsv(text) {
  const body = text.replace(/^\ufeff/, ""), rows = [];
  let row = [], cell = "", quoted = false;
  const endCell = () => { row.push(cell); cell = ""; };
  const endRow = () => { endCell(); rows.push(row); row = []; };
  for (let at = 0; at < body.length; at++) {
    const letter = body[at], doubled = body[at + 1] === letter;
    if (quoted && letter !== '"') cell += letter;
    else if (quoted) { if (doubled) { cell += letter; at++; } else quoted = false; }
    else if (letter === '"') quoted = true;
    else if (letter === ",") endCell();
    else if (letter === "\n") endRow();
    else if (letter !== "\r") cell += letter;
  }
  if (cell || row.length) endRow();
  const columns = rows.shift() ?? [];
  return rows.filter((each) => each.length === columns.length).map((each) => Object.fromEntries(columns.map((name, k) => [name, each[k]])));
}

const unquoted = (text) => text.replace(/^'(?=[=+\-@\t\r\n])/, "");

// The names in a cell of the column rejected_names: a list in JSON, or a single name that somebody typed.
function namesIn(text) {
  try {
    const list = JSON.parse(text);
    if (Array.isArray(list)) return list.filter((each) => (typeof each === "string" && each) || Number.isInteger(each));
  } catch { /* a single name */ }
  return text ? [text] : [];
}

// Groups, names, settled images and rejections of a table that was saved earlier; other images stay as they are.
function applyTable(text) {
  const rows = readCsv(text), places = new Map();
  if (!rows.length || !("path" in rows[0]) || !("name" in rows[0])) return announce("This file has no columns path and name; it is not a labels.csv of this page.");
  data.names.forEach((name, i) => { const key = name.toWellFormed(); places.set(key, [...(places.get(key) ?? []), i]); });
  let next = { ...edits, group: edits.group.slice(), settled: edits.settled.slice() }, count = 0;
  const of = new Map(), numbered = new Map(), rejected = [], listed = new Set();
  for (const row of rows) {
    const image = (places.get(row.path) ?? places.get(unquoted(row.path)))?.shift();
    if (image === undefined) continue;
    count++;
    const name = unquoted(row.name), key = row.cluster === "-1" || (!name && !row.cluster) ? "" : `${row.cluster} ${name}`;
    if (!of.has(key)) of.set(key, key === "" ? NO_GROUP : groupFor(name, Number(row.cluster), row.named !== "false"));
    next.group[image] = of.get(key);
    next.settled[image] = row.settled === "true" || row.settled === "yes" ? 1 : 0;
    numbered.set(Number(row.cluster), next.group[image]);
    if ("rejected_names" in row) listed.add(image);
    for (const given of namesIn(unquoted(row.rejected_names ?? ""))) rejected.push([image, given]);
  }
  function groupFor(name, number, named) {
    const known = named ? groupNamed(name, next) : -1;
    if (known >= 0) return known;
    const free = isFound(number) && ![...of.values()].includes(number) ? number : null;
    let group = free;
    if (group === null) [next, group] = withGroup("", name, next);
    next = { ...next, names: next.names.with(group, named ? name : ""), origins: next.origins.with(group, named ? next.origins[group] : name) };
    return group;
  }
  if (!count) return announce("None of the images in this file is on this page.");
  next = { ...next, banned: next.banned.filter((pair) => !listed.has(pair % N)) };
  next = withRejected(next, rejected
    .map(([image, given]) => [image, typeof given === "number" ? numbered.get(given) : given])
    .filter(([, given]) => given !== undefined && given !== NO_GROUP));
  change(next, `${counted(count, "image")} read; ${counted(rows.length - count, "row")} of other images left out.`);
}

function startKeep() {
  let waiting = 0;
  onEdit(() => { clearTimeout(waiting); waiting = setTimeout(keep, 0); });
  window.addEventListener("pagehide", keep);
  find("open-labels")?.addEventListener("change", async (event) => {
    const [file] = event.target.files;
    event.target.value = "";
    if (file) applyTable(await file.text());
  });
  find("save")?.addEventListener("click", () => download(csv(), "labels.csv", "text/csv;charset=utf-8"));
}
