// The map: every image is a mark on a canvas, which stays fast for tens of thousands of images.
const NAMED = 60; // more names would cover the map
const AT_ONCE_DRAWN = 5000; // maps of more images are drawn when they are seen
const FEW = 26, BESIDE = 40; // the name of a group with fewer marks is placed at those within so many pixels

// The marks near the medoid: a single distant mark of a small group must not shift its name.
function together(xs, ys) {
  const apart = (i, j) => Math.hypot(xs[i] - xs[j], ys[i] - ys[j]);
  const all = xs.map((_, i) => i);
  const sums = all.map((i) => all.reduce((sum, j) => sum + apart(i, j), 0));
  const centre = sums.indexOf(Math.min(...sums));
  const near = all.filter((i) => apart(i, centre) < BESIDE);
  return [near.map((i) => xs[i]), near.map((i) => ys[i])];
}

function startMap() {
  const canvas = find("map-canvas"), hover = find("hover"), ring = find("ring");
  const context = canvas.getContext("2d");
  const paths = new Map(SHAPES.map((shape) => [shape, new Path2D(shape)]));
  let isDrawn = data.names.length <= AT_ONCE_DRAWN, at = [], current = -1, only = null, printing = false;
  let view = { zoom: 1, x: 0.5, y: 0.5 }; // the position shown in the middle

  function project() {
    const width = canvas.clientWidth, height = canvas.clientHeight;
    const extent = Math.min(width, height) - 48;
    const across = extent * Math.min(1.7, (width - 48) / extent) * view.zoom; // a wide canvas stretches the map a little
    const up = extent * view.zoom;
    at = data.layout.map(([x, y]) => [width / 2 + (x - view.x) * across, height / 2 - (y - view.y) * up]);
    return { across, up };
  }

  function draw() {
    const width = canvas.clientWidth, height = canvas.clientHeight, ratio = window.devicePixelRatio || 1;
    if (!width) return;
    project();
    if (!isDrawn) return;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const style = getComputedStyle(canvas);
    const ink = printing ? "#1c1b19" : style.color;
    const radius = Math.max(1.7, Math.min(5, 90 / Math.sqrt(at.length))) * Math.min(2.2, Math.sqrt(view.zoom));
    const middles = new Map();
    for (const front of [false, true]) at.forEach(([x, y], i) => {
      const group = edits.group[i];
      const faint = isHidden(group) || group === NO_GROUP || (only !== null && only !== group);
      if (faint === front) return;
      if (!faint) {
        if (!middles.has(group)) middles.set(group, [[], []]);
        middles.get(group)[0].push(x);
        middles.get(group)[1].push(y);
      }
      if (x < -9 || y < -9 || x > width + 9 || y > height + 9) return;
      const path = paths.get(shapeOf(group));
      context.setTransform(ratio * radius, 0, 0, ratio * radius, ratio * x, ratio * y);
      context.globalAlpha = faint ? (isHidden(group) ? 0.06 : only === null ? 0.35 : 0.1) : 0.8;
      context.fillStyle = colourOf(group, ink);
      context.fill(path);
      if (faint) return;
      context.globalAlpha = 0.45; // a thin outline, without which yellow on white is hard to see
      context.strokeStyle = ink;
      context.lineWidth = 0.18;
      context.stroke(path);
    });
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.globalAlpha = 1;
    if (middles.size <= NAMED) drawNames(middles, ink, printing ? "#fff" : style.getPropertyValue("--paper-plain"));
  }

  function drawNames(middles, ink, halo) {
    context.font = `600 12.5px ${getComputedStyle(document.body).fontFamily}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.lineJoin = "round";
    context.lineWidth = 4;
    context.strokeStyle = halo;
    context.fillStyle = ink;
    const width = canvas.clientWidth, height = canvas.clientHeight, taken = [];
    const ranked = (list, share) => [...list].sort((a, b) => a - b)[Math.floor(share * (list.length - 1))];
    // Larger groups first; a name that would overlap another is shown in the legend only.
    for (const [group, marks] of [...middles].sort(([a], [b]) => ORDERS.size(a, b))) {
      const [xs, ys, least, most] = marks[0].length < FEW ? [...together(...marks), 0, 1] : [...marks, 0.04, 0.96];
      const name = visible(nameOf(group)), middle = ranked(xs, 0.5);
      const short = name.length > 24 ? `${name.slice(0, 23)}…` : name;
      const half = context.measureText(short).width / 2 + 3;
      const x = Math.max(half, Math.min(width - half, middle));
      const free = (y) => middle > 0 && middle < width && y > 10 && y < height - 10
        && !taken.some((box) => Math.abs(box.x - x) < box.half + half && Math.abs(box.y - y) < 17);
      const y = [ranked(ys, least) - 16, ranked(ys, most) + 16, ranked(ys, 0.5)].find(free); // above, below, on top
      if (y === undefined) continue;
      taken.push({ x, y, half });
      context.strokeText(short, x, y);
      context.fillText(short, x, y);
    }
  }

  function show(image) {
    if (image === current) return;
    current = image;
    hover.hidden = ring.hidden = image < 0;
    if (image < 0) return;
    const group = edits.group[image], inGroup = group !== NO_GROUP, hasPicture = pictured.has(image);
    const face = hasPicture ? tile(image, 72) : isFound(data.labels[image]) ? cut("means", data.labels[image], tileWidth(72), "mean") : null;
    hover.replaceChildren(...(face ? [face] : []), make("div", {},
      make("strong", {}, visible(nameOf(group))), fileName(data.names[image]),
      inGroup ? make("span", {}, describe(image).confidence) : null,
      inGroup && !hasPicture ? make("span", {}, "shown: the mean of its group") : null));
    const [x, y] = at[image];
    ring.style.setProperty("transform", `translate(${x}px, ${y}px)`);
    const flip = x + hover.offsetWidth + 24 > canvas.clientWidth;
    const left = flip ? Math.max(0, x - hover.offsetWidth - 14) : x + 14;
    const top = Math.max(4, Math.min(canvas.clientHeight - hover.offsetHeight - 4, y - hover.offsetHeight / 2));
    hover.style.setProperty("transform", `translate(${Math.round(left)}px, ${Math.round(top)}px)`);
    find("map-status").textContent = `${visible(data.names[image])}, ${visible(nameOf(group))}`;
  }

  function under(event) {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.x, y = event.clientY - box.y;
    let best = -1, least = 18 * 18;
    at.forEach(([px, py], i) => {
      const far = (px - x) ** 2 + (py - y) ** 2;
      if (far < least && !isHidden(edits.group[i])) [best, least] = [i, far];
    });
    return best;
  }

  function setView(next) {
    const zoom = Math.max(1, Math.min(40, next.zoom ?? view.zoom)), room = 0.5 - 0.5 / zoom;
    const inside = (value) => Math.max(0.5 - room, Math.min(0.5 + room, value));
    view = { zoom, x: inside(next.x ?? view.x), y: inside(next.y ?? view.y) };
    show(-1);
    find("zoom-out").disabled = zoom === 1;
    draw();
  }

  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, y: event.clientY, view, moved: false };
    if (view.zoom > 1) canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!event.buttons || !drag || view.zoom === 1) return show(under(event));
    const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
    drag.moved ||= Math.hypot(dx, dy) > 4;
    const { across, up } = project();
    if (drag.moved) setView({ x: drag.view.x - dx / across, y: drag.view.y + dy / up });
  });
  canvas.addEventListener("pointerleave", () => show(-1));
  canvas.addEventListener("blur", () => show(-1));
  canvas.addEventListener("click", (event) => {
    const image = under(event);
    if (drag?.moved) return;
    if (image >= 0 && event.pointerType !== "touch") openMembers(edits.group[image]);
    else show(image);
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // the wheel alone scrolls the page
    event.preventDefault();
    setView({ zoom: view.zoom * Math.exp(-event.deltaY / 300) });
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const direction = DIRECTIONS[event.key];
    if (direction) {
      event.preventDefault();
      const candidates = at.flatMap(([x, y], i) => (i === current || isHidden(edits.group[i]) ? [] : [[i, x, y]]));
      const from = current < 0 ? [canvas.clientWidth / 2, canvas.clientHeight / 2] : at[current];
      const next = nearest(from, candidates, direction);
      if (next !== null) show(next);
    } else if (event.key === "Enter" && current >= 0) openMembers(edits.group[current]);
    else if (event.key === "Escape") show(-1);
    else if (event.key === "+" || event.key === "=") setView({ zoom: 1.6 * view.zoom, ...middleOf(current) });
    else if (event.key === "-") setView({ zoom: view.zoom / 1.6 });
  });
  const middleOf = (image) => (image < 0 ? {} : { x: data.layout[image][0], y: data.layout[image][1] });
  find("zoom-in").addEventListener("click", () => setView({ zoom: 1.6 * view.zoom }));
  find("zoom-out").addEventListener("click", () => setView({ zoom: view.zoom / 1.6 }));

  function drawLegend() {
    const point = (group) => { only = group; draw(); };
    const entry = (group) => make("button", {
      type: "button",
      on: {
        pointerenter: () => point(group), pointerleave: () => point(null), focus: () => point(group),
        blur: () => point(null), click: () => openMembers(group),
      },
    }, mark(group), make("bdi", {}, visible(nameOf(group))));
    const list = groups().filter((group) => !isHidden(group)).sort(ORDERS.size);
    const rest = list.length > NAMED ? [make("li", { className: "note" }, `and ${list.length - NAMED} more`)] : [];
    find("legend").replaceChildren(...list.slice(0, NAMED).map((group) => make("li", {}, entry(group))), ...rest);
  }

  canvas.setAttribute("aria-label", `Map of ${counted(data.names.length, "image")} in ${counted(groups().length, "group")}`);
  onEdit(() => { drawLegend(); draw(); }, find("map"));
  onTheme(draw);
  new IntersectionObserver(([entry]) => { if (entry.isIntersecting && !isDrawn) { isDrawn = true; draw(); } }, { rootMargin: "200px" }).observe(canvas);
  new ResizeObserver(draw).observe(canvas);
  window.addEventListener("beforeprint", () => { printing = isDrawn = true; draw(); });
  window.addEventListener("afterprint", () => { printing = false; draw(); });
  drawLegend();
}
