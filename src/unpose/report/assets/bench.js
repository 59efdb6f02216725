// The view of the workbench: one question at a time, answered by a name, a key or a press.
const SAMPLED = 60, ALL_AT_ONCE = 240;
const bench = { asked: null, question: null, cut: 0, turned: new Set(), every: false, skipped: new Set(), before: [], pinned: null };
const pace = { seconds: 0, since: null };

const keyOf = ({ kind, id }) => `${kind} ${id}`;
const isIn = (image, rank) => rank < bench.cut !== bench.turned.has(image);
const chosen = () => bench.question.images.filter(isIn);

// Positions that are shown: all of a short list, else evenly spaced ones with both ends.
function shownRanks(count) {
  const most = bench.every ? ALL_AT_ONCE : SAMPLED;
  if (count <= most) return [...Array(count).keys()];
  return [...new Set(Array.from({ length: most }, (_, k) => Math.round((k * (count - 1)) / (most - 1))))];
}

function nextQuestion() {
  const list = rankedQuestions();
  if (bench.pinned !== null) {
    const grown = { kind: "grow", id: bench.pinned };
    if (growQuestion(bench.pinned).images.length) return [grown, list];
    bench.pinned = null;
  }
  if (list.length && list.every((each) => bench.skipped.has(keyOf(each)))) bench.skipped.clear();
  return [list.find((each) => !bench.skipped.has(keyOf(each))) ?? null, list];
}

function ask(which, list = rankedQuestions()) {
  bench.asked = which;
  bench.question = which && makeQuestion(which);
  bench.cut = bench.question?.cut ?? 0;
  bench.turned = new Set();
  bench.every = false;
  drawQuestion();
  drawNext(list);
}

const TITLES = {
  group: ({ group, images }) => `${nameOf(group)}: ${counted(images.length, "image")}. What are they?`,
  class: ({ group, images }) => (images.length === 1 ? `Is this also ${nameOf(group)}?` : `Are these ${images.length.toLocaleString("en")} also ${nameOf(group)}?`),
  grow: ({ group }) => `What else belongs to ${nameOf(group)}? Nearest first.`,
  image: () => "What is this?",
  check: ({ images }) => `Are these ${images.length} called rightly? Press those that are not.`,
};

function drawQuestion() {
  const { question } = bench, done = !question;
  find("question-title").replaceChildren(make("bdi", {}, visible(done ? "Nothing is left to ask." : TITLES[question.kind](question))));
  find("answering").hidden = done;
  drawProgress();
  if (done) return find("bench-tiles").replaceChildren();
  const total = question.images.length;
  find("naming").value = question.name;
  find("known-names").replaceChildren(...edits.names.filter((name, g) => name && sizeOf(g)).map((value) => make("option", { value })));
  find("naming").hidden = find("choices").hidden = question.kind === "check";
  drawChoices();
  find("cut").max = total;
  find("cut-row").hidden = total < 2 || question.kind === "check";
  find("split").disabled = question.kind !== "group" || total < 2 * FEWEST;
  find("grow").textContent = bench.pinned === null ? "Grow" : "Stop growing";
  find("grow").disabled = bench.pinned === null && (question.kind === "image" || question.group === NO_GROUP || !sizeOf(question.group));
  drawTiles();
}

function drawChoices() {
  if (!bench.question) return;
  find("choices").replaceChildren(...likelyNames(bench.question.images).slice(0, 9).map(([group, share], k) => make("li", {}, make("button", {
    type: "button", className: "choice-name", "aria-keyshortcuts": String(k + 1),
    on: { click: () => accept(nameOf(group)) },
  }, make("kbd", {}, String(k + 1)), mark(group), make("bdi", {}, visible(nameOf(group))), make("small", {}, percent(share))))));
}

function drawTiles() {
  const { images, scores } = bench.question, ranks = shownRanks(images.length);
  const side = images.length === 1 ? 192 : 72;
  find("bench-tiles").replaceChildren(...ranks.map((rank) => benchTile(images[rank], rank, scores[rank], side)));
  find("bench-tiles").querySelector("button")?.setAttribute("tabindex", "0");
  find("every").hidden = images.length <= SAMPLED;
  find("every").textContent = bench.every ? "Show a sample" : `Show ${Math.min(ALL_AT_ONCE, images.length).toLocaleString("en")} of ${images.length.toLocaleString("en")}`;
  markTiles();
}

function benchTile(image, rank, score, side) {
  const face = pictured.has(image) ? tile(image, side) : isFound(data.labels[image]) ? cut("means", data.labels[image], tileWidth(side), "mean") : make("span", {}, "?");
  const button = make("button", {
    type: "button", className: "choose", tabIndex: -1, title: visible(data.names[image]),
    on: { click: () => { bench.turned.has(image) ? bench.turned.delete(image) : bench.turned.add(image); markTiles(); } },
  }, face, bench.question.kind === "check" ? make("bdi", { className: "called" }, visible(nameOf(edits.group[image])))
    : make("span", { className: "share", style: { "--share": Math.min(1, score) } }));
  button.dataset.image = image;
  button.dataset.rank = rank;
  button.dataset.said = `${visible(data.names[image])}, ${bench.question.kind === "check" ? visible(nameOf(edits.group[image])) : percent(Math.min(1, score))}`;
  return make("li", {}, button);
}

// Which tiles are in, what the slider says and what the buttons would do.
function markTiles() {
  const { question } = bench, count = chosen().length, total = question.images.length;
  for (const button of find("bench-tiles").querySelectorAll(".choose")) {
    const inside = isIn(Number(button.dataset.image), Number(button.dataset.rank));
    button.setAttribute("aria-pressed", String(inside));
    button.setAttribute("aria-label", `${button.dataset.said}, ${inside ? "in" : "out"}`);
  }
  find("cut").value = bench.cut;
  find("cut").setAttribute("aria-valuetext", `${bench.cut} of ${total}`);
  find("cut-count").textContent = `${count.toLocaleString("en")} of ${total.toLocaleString("en")}`;
  const name = find("naming").value.trim();
  find("accept").replaceChildren(`${name ? "Accept" : "Name"} ${count.toLocaleString("en")}`, make("kbd", {}, "space"));
  find("accept").disabled = !count || !name;
  find("reject").disabled = !count || question.group === NO_GROUP; // nothing to reject
  find("check").disabled = !edits.settled.includes(1);
  find("bench-undo").disabled = !past.length;
  find("bench-redo").disabled = !future.length;
}

function drawNext(list) {
  const words = { group: (id) => `${nameOf(id)}?`, class: (id) => `more ${nameOf(id)}`, image: () => "one image" };
  find("next").replaceChildren(...list.slice(0, 8).map((each) => make("li", {}, make("button", {
    type: "button", className: "quiet", "aria-current": String(bench.asked !== null && keyOf(bench.asked) === keyOf(each)),
    on: { click: () => { bench.pinned = null; ask(each); focusQuestion(); } },
  }, make("bdi", {}, visible(words[each.kind](each.id))), make("small", {}, ` about ${Math.max(1, Math.round(each.gain)).toLocaleString("en")}`)))));
}

function drawProgress() {
  const { settled, precision, margin, seen } = progressOf(), left = N - settled;
  const rate = settled / (pace.seconds / 60), minutes = Math.ceil(left / rate);
  find("bench-progress").max = N;
  find("bench-progress").value = settled;
  find("bench-progress").setAttribute("aria-label", `${settled} of ${N} images settled`);
  const said = [`${settled.toLocaleString("en")} of ${counted(N, "image")} settled (${percent(settled / N)})`];
  if (precision !== null) said.push(`estimated precision ${percent(precision)} ± ${Math.ceil(100 * margin)} (${seen} checked)`);
  else if (settled) said.push("precision not checked yet");
  if (pace.seconds > 5 && settled && left) said.push(`about ${counted(minutes, "minute")} more at this pace`);
  find("progress-line").textContent = `${said.join(", ")}.`;
}

const focusQuestion = () => find("question").focus({ preventScroll: true });

function accept(name) {
  const images = chosen(), given = name.trim();
  if (!bench.question || !images.length || !given) return;
  if (bench.question.kind === "check") return confirm(bench.question, images);
  const refused = bench.question.images.filter((image, rank) => rank < bench.cut && bench.turned.has(image));
  settle(bench.question, images, given, refused);
}

function skip() {
  if (!bench.asked) return;
  bench.pinned = null;
  bench.before.push(bench.asked);
  bench.skipped.add(keyOf(bench.asked));
  ask(...nextQuestion());
  focusQuestion();
}

function back() {
  const which = bench.before.pop();
  if (!which) return;
  bench.skipped.delete(keyOf(which));
  ask(which);
  focusQuestion();
}

function setCut(value) {
  bench.cut = Math.max(0, Math.min(bench.question.images.length, value));
  bench.turned = new Set();
  markTiles();
}

// By a twelfth of what is shown, so that a few presses reach any point.
const stepCut = (sign) => setCut(bench.cut + sign * Math.max(1, Math.round(bench.question.images.length / 12)));
const setCore = () => setCut(firstBelow(bench.question.scores, bench.question.scores[0] * 0.8));
const toggleGrow = () => { bench.pinned = bench.pinned === null ? bench.question.group : null; ask(...nextQuestion()); focusQuestion(); };

const KEYS = {
  " ": () => accept(find("naming").value), x: () => find("reject").click(), j: skip, k: back, z: undo, y: redo,
  s: () => find("split").click(), g: () => find("grow").click(), a: () => find("all").click(), c: () => find("core").click(),
  n: () => { find("naming").focus(); find("naming").select(); }, "+": () => stepCut(1), "=": () => stepCut(1), "-": () => stepCut(-1),
};

function benchKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input:not([type=range])")) return;
  const own = event.target.closest("button, input, summary, a"), number = Number(event.key);
  if (own && (event.key === " " || event.key === "Enter") && !event.target.closest(".choose")) return; // presses the button
  if (number >= 1 && number <= 9) find("choices").children[number - 1]?.querySelector("button").click();
  else if (KEYS[event.key] && bench.question) KEYS[event.key]();
  else if (event.key === "Z") redo();
  else if (event.key === "z") undo();
  else return;
  event.preventDefault();
}

function countTime() {
  const now = performance.now() / 1000;
  if (pace.since !== null) pace.seconds += Math.min(PAUSE, now - pace.since);
  pace.since = now;
}

// The reach of every image takes seconds for tens of thousands: it is computed when needed, in slices between other work.
let reaching = false;

function startReach() {
  if (reaching) return;
  reaching = true;
  const steps = reachOf(graph);
  const slice = () => {
    const until = performance.now() + 12;
    let result;
    do { result = steps.next(); } while (!result.done && performance.now() < until);
    if (!result.done) return setTimeout(slice, 4);
    spread.reach = result.value;
    document.documentElement.dataset.reached = "";
    if (!bench.question) ask(...nextQuestion());
  };
  setTimeout(slice);
}

function startBench() {
  if (!graph) return;
  const click = (id, act) => find(id).addEventListener("click", () => { act(); });
  click("accept", () => accept(find("naming").value));
  click("reject", () => reject(bench.question, chosen()));
  click("split", () => split(bench.question));
  click("grow", toggleGrow);
  click("all", () => setCut(bench.question.images.length));
  click("none", () => setCut(0));
  click("core", setCore);
  click("skip", skip);
  click("back", back);
  click("check", () => { ask({ kind: "check", id: NO_GROUP }); focusQuestion(); });
  click("bench-undo", undo);
  click("bench-redo", redo);
  click("every", () => { bench.every = !bench.every; drawTiles(); });
  find("cut").addEventListener("input", () => setCut(Number(find("cut").value)));
  find("naming").addEventListener("input", markTiles);
  find("naming").addEventListener("keydown", (event) => {
    if (event.key === "Enter") accept(event.target.value);
    if (event.key === "Escape") focusQuestion();
  });
  find("bench").addEventListener("keydown", benchKey);
  moveFocusByArrows(find("bench-tiles"), ".choose");
  find("bench-tiles").addEventListener("focusin", (event) => {
    find("bench-tiles").querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
    event.target.setAttribute("tabindex", "0");
  });
  onEdit(() => {
    const inside = find("bench").contains(document.activeElement);
    countTime();
    refreshSpread(() => { drawChoices(); drawNext(rankedQuestions()); drawProgress(); if (!bench.question) ask(...nextQuestion()); });
    ask(...nextQuestion());
    if (inside) focusQuestion();
  });
  refreshSpread(() => ask(...nextQuestion()));
  ask(...nextQuestion());
}
