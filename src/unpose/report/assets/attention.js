// The attention matrix: a picture with opacity only, in the colour of the text, with the groups marked along its edges.
function startAttention() {
  if (!data.attention) return;
  const { order, edges, shares } = data.attention;
  const shade = make("div", { className: "shade", style: { "mask-image": address("attention") } });
  const marks = (axis) => make("div", { className: `edge ${axis}`, "aria-hidden": "true" }, ...order.map((group, i) => {
    const [start, end] = [edges[i], edges[i + 1]];
    const segment = make("span", { style: { "--start": start, "--share": end - start } });
    segment.style.setProperty("background", colourOf(group, "currentColor"));
    return segment;
  }));
  const field = make("div", { className: "field", tabIndex: 0, role: "img" }, shade, ...edges.slice(1, -1).flatMap((edge) => [
    make("i", { className: "across", style: { "--at": edge } }), make("i", { className: "down", style: { "--at": edge } })]));
  field.setAttribute("aria-label", `Attention matrix; ${percent(data.attention.inside)} of the weight stays within the groups. Use the arrow keys to read it group by group.`);
  let reading = [0, 0];

  function read(row, column) {
    reading = [row, column];
    const label = (i) => visible(nameOf(groupOf(order[i])));
    find("matrix-reading").textContent = row === column
      ? `${label(row)} gives ${percent(shares[row][column])} of its attention to itself.`
      : `${label(row)} gives ${percent(shares[row][column])} of its attention to ${label(column)}.`;
  }

  const segment = (share) => Math.max(0, Math.min(order.length - 1, edges.findIndex((edge, i) => i > 0 && share < edge) - 1));
  field.addEventListener("pointermove", (event) => {
    const box = field.getBoundingClientRect();
    read(segment((event.clientY - box.y) / box.height), segment((event.clientX - box.x) / box.width));
  });
  field.addEventListener("keydown", (event) => {
    const direction = DIRECTIONS[event.key];
    if (!direction) return;
    event.preventDefault();
    const inside = (i) => Math.max(0, Math.min(order.length - 1, i));
    read(inside(reading[0] + direction[1]), inside(reading[1] + direction[0]));
  });
  find("matrix").append(marks("top"), marks("left"), field);
}
