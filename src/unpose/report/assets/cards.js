// The grid of groups: one card each, which can be sorted, selected and renamed.
const selected = new Set();
const cards = new Map();

const ORDERS = {
  size: (a, b) => sizeOf(b) - sizeOf(a) || a - b,
  confidence: (a, b) => confidenceOf(b) - confidenceOf(a) || a - b,
  name: (a, b) => nameOf(a).localeCompare(nameOf(b), undefined, { numeric: true }) || a - b,
};

function card(group) {
  const cluster = data.clusters[group];
  const side = tileWidth(132);
  const name = make("input", {
    className: "name", type: "text", value: nameOf(group), maxLength: 200, autocomplete: "off", spellcheck: false,
    "aria-label": `Name of group ${group}`,
    on: {
      change: (event) => rename(group, event.target.value),
      keydown: (event) => {
        if (event.key === "Enter") event.target.blur();
        if (event.key === "Escape") { event.target.value = nameOf(group); event.target.blur(); }
      },
    },
  });
  const open = make("button", { type: "button", className: "open", on: { click: () => openMembers(group) } },
    isFound(group) ? cut("means", group, side, "mean") : pile(group),
    (cluster?.error ?? null) === null ? null : make("span", { className: "error-map" }, `± ${twoDigits(cluster.error)}`,
      cut("errors", group, tileWidth(60), "error")));
  const select = make("input", {
    type: "checkbox", className: "select",
    on: { change: (event) => { event.target.checked ? selected.add(group) : selected.delete(group); drawTools(); } },
  });
  const element = make("li", { className: "card" },
    make("div", { className: "top" }, mark(group), name, select), open,
    make("div", { className: "facts" }), make("div", { className: "parts" }));
  element.dataset.group = group;
  return element;
}

function refreshCard(group) {
  const element = cards.get(group), size = sizeOf(group), confidence = confidenceOf(group);
  const shownName = visible(nameOf(group));
  element.querySelector(".name").value = nameOf(group);
  element.querySelector(".select").checked = selected.has(group);
  element.querySelector(".select").setAttribute("aria-label", `Select ${shownName}`);
  element.querySelector(".open").setAttribute("aria-label",
    `Open ${shownName}: ${counted(size, "image")}, ${confidenceText(confidence)}`);
  element.classList.toggle("is-hidden", isHidden(group));
  const symmetry = data.clusters[group]?.symmetry, settled = membersOf(group).filter((i) => edits.settled[i]).length;
  if (!isFound(group)) element.querySelector(".pile").replaceWith(pile(group));
  element.querySelector(".facts").replaceChildren(
    make("span", { className: "count" }, countText(group)),
    make("span", { className: "confidence" }, confidenceText(confidence)),
    make("meter", { min: 0, max: 1, value: confidence, "aria-hidden": "true" }),
    make("span", { className: "symmetry" }, settled ? `${settled.toLocaleString("en")} settled`
      : symmetry ? `symmetric: ${symmetry}` : isFound(group) ? "not symmetric" : "made by hand"));
  const others = partsOf(group).filter((c) => c !== group);
  element.querySelector(".parts").replaceChildren(...(others.length
    ? [make("span", {}, "with"), ...others.map((c) => cut("means", c, tileWidth(28), "mean"))] : []));
}

// A page of a sample says how many images the group has in all, until images were moved by hand.
function countText(group) {
  const shown = counted(sizeOf(group), "image");
  if (!data.totals || group >= data.clusters.length) return shown;
  const parts = group === NO_GROUP ? [NO_GROUP] : partsOf(group);
  const total = parts.reduce((sum, part) => sum + data.totals[part + 1], 0);
  return `${counted(total, "image")}, ${sizeOf(group).toLocaleString("en")} here`;
}

const pile = (group) => make("div", { className: "pile" },
  ...membersOf(group).filter((i) => pictured.has(i)).slice(0, 9).map((image) => tile(image, 44)));

function noGroupCard() {
  const element = make("li", { className: "card no-group" },
    make("div", { className: "top" }, mark(NO_GROUP), make("span", { className: "name" }, "No group")),
    make("button", {
      type: "button", className: "open", "aria-label": `Open the ${counted(sizeOf(NO_GROUP), "image")} without a group`,
      on: { click: () => openMembers(NO_GROUP) },
    }, pile(NO_GROUP)),
    make("div", { className: "facts" }, make("span", { className: "count" }, countText(NO_GROUP))));
  element.dataset.group = NO_GROUP;
  return element;
}

// Groups whose name or one of whose files contains the words in the search box, and their images that do.
const sought = () => find("search").value.trim().toLowerCase();
const isSought = (image) => data.names[image].toLowerCase().includes(sought());
const soughtIn = (group) => (sought() ? membersOf(group).filter(isSought) : []);
const matchesSearch = (group) => !sought() || nameOf(group).toLowerCase().includes(sought()) || soughtIn(group).length > 0;

function search() {
  drawCards();
  const matching = [...groups(), NO_GROUP].filter(matchesSearch), images = matching.flatMap(soughtIn).length;
  const count = matching.filter((group) => group !== NO_GROUP).length;
  announce(sought() ? `${counted(images, "file name")} and ${counted(count, "group")} match.` : "");
}

function drawCards() {
  const all = groups().filter((g) => !isHidden(g) || find("show-hidden").checked).sort(ORDERS[find("sort").value]);
  const list = all.filter(matchesSearch);
  for (const group of list) {
    if (!cards.has(group)) cards.set(group, card(group));
    refreshCard(group);
  }
  for (const group of selected) if (!all.includes(group)) selected.delete(group);
  const last = sizeOf(NO_GROUP) && matchesSearch(NO_GROUP) ? [noGroupCard()] : [];
  find("cards").replaceChildren(...list.map((group) => cards.get(group)), ...last);
  drawTools();
}

function drawTools() {
  const list = [...selected], allHidden = list.length > 0 && list.every(isHidden);
  const hidden = groups().filter(isHidden).length;
  find("compare").disabled = list.length !== 2;
  find("merge").disabled = list.length < 2;
  find("merge").textContent = list.length > 1 ? `Merge ${list.length}` : "Merge";
  find("hide").disabled = list.length < 1;
  find("hide").textContent = `${allHidden ? "Show again" : "Hide"}${list.length ? ` ${list.length}` : ""}`;
  find("undo").disabled = past.length === 0;
  find("redo").disabled = future.length === 0;
  find("hidden-choice").hidden = hidden === 0;
  find("hidden-count").textContent = `show ${hidden} hidden`;
}

function startCards() {
  const then = (act) => () => { const list = [...selected]; selected.clear(); act(list); };
  find("merge").addEventListener("click", then(merge));
  find("hide").addEventListener("click", then((list) => hide(list, !list.every(isHidden))));
  find("compare").addEventListener("click", () => compare([...selected]));
  find("undo").addEventListener("click", undo);
  find("redo").addEventListener("click", redo);
  find("search").addEventListener("input", search);
  find("sort").addEventListener("change", drawCards);
  find("show-hidden").addEventListener("change", drawCards);
  moveFocusByArrows(find("cards"), ".open");
  onEdit(drawCards, find("groups"));
  drawCards();
}
