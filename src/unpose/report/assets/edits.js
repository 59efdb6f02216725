// Changes by the user: names, merges, hidden groups. A state is an immutable value; undo restores the previous one.
const found = {
  names: data.clusters.map((_, c) => `Group ${c}`),
  into: data.clusters.map((_, c) => c), // the group that cluster c is part of now
  hidden: data.clusters.map(() => false),
};
let edits = found;
const past = [];
const watchers = [];
let unsaved = false;

const onEdit = (act) => watchers.push(act);
const announce = (text) => { find("status").textContent = text; };

function change(next, message) {
  past.push(edits);
  edits = { ...edits, ...next };
  unsaved = true;
  watchers.forEach((act) => act());
  announce(message);
}

function undo() {
  if (!past.length) return;
  edits = past.pop();
  unsaved = past.length > 0;
  watchers.forEach((act) => act());
  announce("Undone.");
}

const groupOf = (label) => (label === NO_GROUP ? NO_GROUP : edits.into[label]);
const nameOf = (group) => (group === NO_GROUP ? "No group" : edits.names[group]);
const isHidden = (group) => group !== NO_GROUP && edits.hidden[group];

// The clusters of each group, recomputed after a merge or an undo.
let parts = { into: null, of: new Map() };

function partsOf(group) {
  if (parts.into !== edits.into) {
    parts = { into: edits.into, of: new Map([[NO_GROUP, [NO_GROUP]]]) };
    edits.into.forEach((g, c) => parts.of.set(g, [...(parts.of.get(g) ?? []), c]));
  }
  return parts.of.get(group);
}

const groups = () => [...new Set(edits.into)];
const sizeOf = (group) => partsOf(group).reduce((sum, c) => sum + members[c].length, 0);

// Members of each cluster in order of decreasing confidence; members[-1] are the images without a cluster.
const members = {};
for (let c = NO_GROUP; c < data.clusters.length; c++) members[c] = [];
data.labels.forEach((label, i) => members[label].push(i));
for (const list of Object.values(members)) list.sort((a, b) => data.confidences[b] - data.confidences[a] || a - b);

function confidenceOf(group) {
  const parts = partsOf(group).filter((c) => c !== NO_GROUP && members[c].length);
  const total = parts.reduce((sum, c) => sum + members[c].length, 0);
  return parts.reduce((sum, c) => sum + members[c].length * data.clusters[c].confidence, 0) / (total || 1);
}

function rename(group, name) {
  const newName = name.trim() || found.names[group];
  if (newName === edits.names[group]) return;
  change({ names: edits.names.with(group, newName) }, `${visible(edits.names[group])} is now called ${visible(newName)}.`);
}

function merge(list) {
  const target = list.reduce((a, b) => (sizeOf(b) > sizeOf(a) ? b : a));
  const others = list.filter((g) => g !== target);
  change(
    { into: edits.into.map((g) => (others.includes(g) ? target : g)) },
    `Merged ${others.map(nameOf).map(visible).join(", ")} into ${visible(nameOf(target))}.`,
  );
  return target;
}

function hide(list, hidden) {
  change(
    { hidden: edits.hidden.map((old, g) => (list.includes(g) ? hidden : old)) },
    `${hidden ? "Hid" : "Shown again:"} ${list.map(nameOf).map(visible).join(", ")}.`,
  );
}
