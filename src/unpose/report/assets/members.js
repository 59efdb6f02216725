// The dialog of one group, or of two side by side: averages and the images themselves, as found and aligned.
const AT_ONCE = 120, STACKED = 40, COMPARED = 60;

function describe(image) {
  const { angle, x, y, scale, mirrored } = partsOfPose(image);
  const pose = [`rotated ${angle.toFixed(0)}°`, `shifted ${x.toFixed(1)}, ${y.toFixed(1)} px`];
  if (Math.abs(scale - 1) > 0.005) pose.push(`scaled ${scale.toFixed(2)}`);
  if (mirrored) pose.push("mirrored");
  return { confidence: confidenceText(data.confidences[image]), pose: pose.join(", ") };
}

function memberTile(image, i, reading) {
  const name = visible(data.names[image]), { confidence, pose } = describe(image);
  const read = () => reading.replaceChildren(fileName(data.names[image]), make("span", {}, ` · ${confidence} · ${pose}`));
  const enlarge = (event) => {
    const large = event.currentTarget.classList.toggle("large");
    event.currentTarget.replaceChildren(tile(image, large ? 256 : 72));
  };
  return make("li", {
    className: sought() && isSought(image) ? "member sought" : "member", tabIndex: i ? -1 : 0, "aria-label": `${name}, ${confidence}, ${pose}`,
    style: { "--late": `${Math.min(400, 6 * i)}ms` }, 
    on: { focus: read, pointerenter: read, click: enlarge, keydown: (event) => { if (event.key === "Enter") enlarge(event); } },
  }, tile(image, 72));
}

function openMembers(group) {
  const dialog = find("members"), clusters = partsOf(group);
  const all = [...membersOf(group)];
  if (sought()) all.sort((a, b) => isSought(b) - isSought(a)); // what was searched comes first
  const withPicture = all.filter((image) => pictured.has(image));
  const reading = make("p", { className: "reading" }, "Point at an image, or move with the arrow keys, to read its name and pose; click it, or press Enter, to enlarge it.");
  const list = make("ul", { className: "tiles", "aria-label": "Images of this group" });
  const order = make("select", { on: { change: () => { shown = 0; list.replaceChildren(); more(); } } },
    make("option", { value: "high" }, "highest confidence first"), make("option", { value: "low" }, "lowest confidence first"),
    data.distances ? make("option", { value: "far" }, "farthest from the mean first") : null);
  const further = make("button", { type: "button", className: "more", on: { click: () => more() } });
  let shown = 0;

  function more() {
    const ordered = order.value === "high" ? withPicture : order.value === "low" ? [...withPicture].reverse()
      : [...withPicture].sort((a, b) => data.distances[b] - data.distances[a] || a - b);
    list.append(...ordered.slice(shown, shown + AT_ONCE).map((image, i) => memberTile(image, shown + i, reading)));
    shown = Math.min(shown + AT_ONCE, ordered.length);
    further.hidden = shown === ordered.length;
    further.textContent = `Show ${Math.min(AT_ONCE, ordered.length - shown)} more`;
  }

  more();
  const averages = clusters.filter((c) => c !== NO_GROUP && withPicture.some((image) => data.labels[image] === c)).map((c) => averageOf(group, c));
  const rest = all.length - withPicture.length;
  forgetSwitches(dialog);
  dialog.replaceChildren(
    make("div", { className: "dialog-bar" },
      make("h2", { id: "members-title" }, mark(group), make("bdi", {}, visible(nameOf(group)))),
      make("nav", { "aria-label": "Groups" }, turnTo(group, -1, "Previous group", "‹"), turnTo(group, 1, "Next group", "›"),
        make("button", { type: "button", className: "quiet", on: { click: () => dialog.close() } }, "Close"))),
    make("div", { className: "dialog-body" },
      make("div", { className: "dialog-lead" }, ...averages, make("div", { className: "dialog-words" },
        make("p", {}, group === NO_GROUP
          ? `${counted(all.length, "image")} that fit${all.length === 1 ? "s" : ""} no group; there is no mean to align to.`
          : `${counted(all.length, "image")}, ${confidenceText(confidenceOf(group))}. ${symmetryNote(group)}`),
        group === NO_GROUP ? null : poseSwitch(),
        clusters.length > 1 ? make("p", { className: "note" }, "This group was merged: each image is aligned to the mean of its original group.") : null)),
      make("div", { className: "heading" }, reading, make("label", { className: "choice" }, "Order ", order)),
      list, further,
      rest ? make("p", { className: "note rest" }, `and ${rest.toLocaleString("en")} more without a picture on this page${data.inRun ? ": " : ""}`,
        data.inRun ? make("code", {}, "unpose export RUN --to folders") : null) : null));
  moveFocusByArrows(list, ".member");
  list.addEventListener("focusin", (event) => {
    list.querySelector('[tabindex="0"]')?.setAttribute("tabindex", "-1");
    event.target.setAttribute("tabindex", "0");
  });
  if (!dialog.open) dialog.showModal();
  (dialog.querySelector(".switch") ?? dialog.querySelector("button")).focus();
  dialog.scrollTop = 0;
}

// Two groups side by side: their means and their first images.
function compare(list) {
  const dialog = find("members");
  const reading = make("p", { className: "reading" }, "Point at an image to read its name and pose; click it to enlarge it.");
  const side = (group) => {
    const images = membersOf(group).filter((image) => pictured.has(image));
    const tiles = make("ul", { className: "tiles", "aria-label": `Images of ${visible(nameOf(group))}` },
      ...images.slice(0, COMPARED).map((image, i) => memberTile(image, i, reading)));
    moveFocusByArrows(tiles, ".member");
    return make("section", { className: "side" }, make("h3", {}, mark(group), make("bdi", {}, visible(nameOf(group)))),
      ...partsOf(group).map((c) => cut("means", c, tileWidth(148), "mean")),
      make("p", {}, `${counted(sizeOf(group), "image")}, ${confidenceText(confidenceOf(group))}. ${symmetryNote(group)}`), tiles);
  };
  forgetSwitches(dialog);
  dialog.replaceChildren(
    make("div", { className: "dialog-bar" },
      make("h2", { id: "members-title" }, `${list.map(nameOf).map(visible).join(" and ")}`),
      make("nav", {}, make("button", { type: "button", className: "quiet", on: { click: () => dialog.close() } }, "Close"))),
    make("div", { className: "dialog-body" }, make("div", { className: "heading" }, poseSwitch(), reading),
      make("div", { className: "sides" }, ...list.map(side))));
  if (!dialog.open) dialog.showModal();
  dialog.querySelector(".switch").focus();
  dialog.scrollTop = 0;
}

// A button that opens the previous or next group, in the order of the cards.
function turnTo(group, step, label, sign) {
  const order = [...find("cards").children].map((element) => Number(element.dataset.group));
  const next = order[order.indexOf(group) + step];
  return make("button", {
    type: "button", className: "quiet", "aria-label": label, disabled: next === undefined,
    on: { click: () => openMembers(next) },
  }, sign);
}

function symmetryNote(group) {
  const symmetry = data.clusters[group]?.symmetry;
  return symmetry ? `It is symmetric (${symmetry}), so several poses are equally correct.` : "";
}

// The average of the images: blurred as found, sharp when the switch aligns them.
function averageOf(group, cluster) {
  const some = membersOf(group).filter((image) => data.labels[image] === cluster && pictured.has(image));
  const step = Math.max(1, some.length / STACKED);
  const layers = Array.from({ length: Math.min(STACKED, some.length) }, (_, i) => some[Math.floor(i * step)]);
  return make("figure", { className: "average" }, stack(layers, 148),
    make("figcaption", {}, `average of ${counted(layers.length, "image")}`));
}

function startMembers() {
  const dialog = find("members");
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("close", () => { forgetSwitches(dialog); dialog.replaceChildren(); });
}
