// Changes by the user: the group of each image, which images are settled, names, hidden groups. A state is an immutable
// value; undo and redo keep what is different.
const N = data.names.length;
let found = {
  group: Int32Array.from(data.labels),
  settled: Uint8Array.from(data.settled ?? new Array(N).fill(0)), // images whose name a person has accepted
  names: data.clusters.map((_, c) => data.groupNames?.[c] ?? ""), // empty: not named yet
  origins: data.clusters.map((_, c) => `Group ${c}`), // what a group without a name is called
  hidden: data.clusters.map(() => false),
  banned: [], // images that are not of a group, as image + N * group; see withRejected
  checks: [0, 0], // settled images that were right when a person looked at them again, and all that she looked at
};
let edits = found;

// The state with images that are not of a group: pairs of an image and the name, or the number, of the group.
function withRejected(state, pairs) {
  let next = state;
  const banned = new Set(state.banned);
  for (const [image, given] of pairs) {
    let group = typeof given === "number" ? given : next.names.indexOf(given);
    if (group < 0) [next, group] = withGroup(given, given, next); // a name that no image has now
    banned.add(image + N * group);
  }
  return { ...next, banned: [...banned] };
}

// For each image, the names that it does not have; the numbers of groups without a name.
function rejectedNames() {
  const lists = new Map();
  for (const pair of edits.banned) {
    const image = pair % N, group = Math.floor(pair / N);
    if (edits.settled[image] && edits.group[image] === group) continue; // it was accepted later
    lists.set(image, [...(lists.get(image) ?? []), edits.names[group] || group]);
  }
  return lists;
}

const past = [], future = [];
const watchers = [];
let unsaved = false;

const announce = (text) => { find("status").textContent = text; };

// Calls an act after each edit. A part of the page that is out of sight waits until it is seen.
function onEdit(act, element = null) {
  const watcher = { act, element, stale: false };
  watchers.push(watcher);
  if (element) new IntersectionObserver(([entry]) => { if (entry.isIntersecting && watcher.stale) { watcher.stale = false; act(); } }).observe(element);
}

function isSeen(element) {
  const box = element.getBoundingClientRect();
  return box.bottom > 0 && box.top < innerHeight;
}

// All places are asked for before anything is drawn: between two changes of the page that would be slow.
function tellWatchers() {
  for (const watcher of watchers) watcher.stale = watcher.element !== null && !isSeen(watcher.element);
  for (const watcher of watchers) if (!watcher.stale) watcher.act();
}

const PARTS = ["names", "origins", "hidden", "banned", "checks"];

// What turns the second state into the first.
function difference(first, second) {
  const images = [];
  for (let i = 0; i < N; i++) if (first.group[i] !== second.group[i] || first.settled[i] !== second.settled[i]) images.push(i);
  const others = Object.fromEntries(PARTS.filter((part) => first[part] !== second[part]).map((part) => [part, first[part]]));
  return { ...others, images, group: images.map((i) => first.group[i]), settled: images.map((i) => first.settled[i]) };
}

function restored(state, { images, group, settled, ...others }) {
  const next = { ...state, ...others, group: state.group.slice(), settled: state.settled.slice() };
  images.forEach((image, k) => { next.group[image] = group[k]; next.settled[image] = settled[k]; });
  return next;
}

function change(next, message) {
  const before = edits;
  edits = { ...edits, ...next };
  past.push(difference(before, edits));
  future.length = 0;
  unsaved = true;
  tellWatchers();
  announce(message);
}

function step(from, to, message) {
  if (!from.length) return;
  const before = edits;
  edits = restored(edits, from.pop());
  to.push(difference(before, edits));
  unsaved = true;
  tellWatchers();
  announce(message);
}

const undo = () => step(past, future, "Undone.");
const redo = () => step(future, past, "Done again.");

const nameOf = (group) => (group === NO_GROUP ? "No group" : edits.names[group] || edits.origins[group]);
const isNamed = (group) => group !== NO_GROUP && edits.names[group] !== "";
const isHidden = (group) => group !== NO_GROUP && edits.hidden[group];
const isFound = (group) => group >= 0 && group < data.clusters.length; // has a mean; others were made by hand

// Images of each group in order of decreasing confidence, and the found clusters that are mostly in it.
const ranked = [...data.names.keys()].sort((a, b) => data.confidences[b] - data.confidences[a] || a - b);
const clusterSizes = new Map();
for (const label of data.labels) clusterSizes.set(label, (clusterSizes.get(label) ?? 0) + 1);
let sorted = { of: null, members: new Map(), parts: new Map() };

function sortedInto() {
  if (sorted.of === edits.group) return sorted;
  const lists = [[], ...edits.names.map(() => [])], wide = lists.length; // of group -1, 0, 1, ...
  const shared = new Int32Array((data.clusters.length + 1) * wide), parts = new Map(), home = new Map();
  for (const image of ranked) {
    const group = edits.group[image];
    lists[group + 1].push(image);
    shared[(data.labels[image] + 1) * wide + group + 1]++;
  }
  const members = new Map(lists.map((list, g) => [g - 1, list]).filter(([, list]) => list.length));
  for (const [label, size] of [...clusterSizes].sort(([a], [b]) => a - b)) {
    const inside = (group) => shared[(label + 1) * wide + group + 1];
    for (const group of members.keys()) {
      if (!home.has(label) || inside(group) > inside(home.get(label))) home.set(label, group);
      if (inside(group) && (group === label || 2 * inside(group) >= size)) parts.set(group, [...(parts.get(group) ?? []), label]);
    }
  }
  sorted = { of: edits.group, members, parts, home };
  return sorted;
}

const membersOf = (group) => sortedInto().members.get(group) ?? [];
const partsOf = (group) => sortedInto().parts.get(group) ?? [];
const groupOf = (label) => sortedInto().home.get(label) ?? label; // the group that most of a cluster is in
const groups = () => [...sortedInto().members.keys()].filter((group) => group !== NO_GROUP).sort((a, b) => a - b);
const sizeOf = (group) => membersOf(group).length;

function confidenceOf(group) {
  const inside = membersOf(group).filter((i) => data.labels[i] !== NO_GROUP);
  return inside.reduce((sum, i) => sum + data.clusters[data.labels[i]].confidence, 0) / (inside.length || 1);
}

// Copies of an image are named with it.
const copiesOf = new Map();
for (const [copy, first] of data.copies) copiesOf.set(first, [...(copiesOf.get(first) ?? []), copy]);
const withCopies = (images) => (copiesOf.size ? [...new Set(images.flatMap((i) => [i, ...(copiesOf.get(i) ?? [])]))] : images);

// The state with images in a group, settled or not.
function placed(images, group, settled, state = edits) {
  const next = { ...state, group: state.group.slice(), settled: state.settled.slice() };
  for (const image of withCopies(images)) { next.group[image] = group; next.settled[image] = settled; }
  return next;
}

// The state with one more group, and the number of that group.
function withGroup(name, origin, state = edits) {
  const next = { ...state, names: [...state.names, name], origins: [...state.origins, origin], hidden: [...state.hidden, false] };
  return [next, state.names.length];
}

const groupNamed = (name, state = edits) => state.names.indexOf(name);

found = withRejected(found, data.rejectedNames ?? []);
edits = found;

function rename(group, name) {
  const newName = name.trim(), other = newName ? groupNamed(newName) : -1;
  if (newName === edits.names[group] || newName === nameOf(group)) return;
  if (other >= 0 && sizeOf(other)) return merge([other, group], other);
  change({ names: edits.names.with(group, newName) },
    `${visible(nameOf(group))} is now called ${visible(newName || edits.origins[group])}.`);
}

function merge(list, target = list.reduce((a, b) => (sizeOf(b) > sizeOf(a) ? b : a))) {
  const others = list.filter((g) => g !== target), moved = new Set(others);
  const name = edits.names[target] || (others.map((g) => edits.names[g]).find(Boolean) ?? "");
  const names = edits.names.map((old, g) => (g === target ? name : moved.has(g) ? "" : old));
  const message = `Merged ${others.map(nameOf).map(visible).join(", ")} into ${visible(nameOf(target))}.`;
  change({ group: edits.group.map((g) => (moved.has(g) ? target : g)), names }, message);
  return target;
}

function hide(list, hidden) {
  change(
    { hidden: edits.hidden.map((old, g) => (list.includes(g) ? hidden : old)) },
    `${hidden ? "Hid" : "Shown again:"} ${list.map(nameOf).map(visible).join(", ")}.`,
  );
}
