// Rounds of invariant attention as a film: two layers per image, of which the later one fades in.
const ROUND_SECONDS = 1.4;

function startFilm() {
  const last = data.rounds.length - 1;
  if (last < 0) return;
  const film = find("film"), scrub = find("scrub"), play = find("play");
  const width = tileWidth(72), count = data.sheets["round-0"].count;
  const frames = Array.from({ length: count }, (_, i) =>
    [cut("round-0", i, width, "frame"), cut("round-0", i, width, "frame over")]);
  film.append(...frames.map((layers) => make("div", { className: "tile" }, ...layers)));
  film.setAttribute("aria-label", `${counted(count, "image")} over ${counted(last, "round")}`);
  scrub.max = last;
  let base = -1, playing = 0;

  function show(value) {
    const round = Math.min(Math.floor(value), Math.max(0, last - 1));
    if (round !== base) frames.forEach(([under, over], i) => {
      place(under, `round-${round}`, i, width);
      place(over, `round-${Math.min(round + 1, last)}`, i, width);
    });
    base = round;
    film.style.setProperty("--fade", value - round);
    const nearestRound = Math.round(value), note = data.rounds[nearestRound];
    find("round-note").textContent =
      (nearestRound === 0 ? "as found" : `round ${nearestRound} of ${last}`) + (note ? `: ${note}` : "");
    scrub.setAttribute("aria-valuetext", find("round-note").textContent);
  }

  function stop() {
    cancelAnimationFrame(playing);
    playing = 0;
    play.textContent = "Play";
    play.setAttribute("aria-label", "Play the film of rounds");
  }

  function start() {
    const from = Number(scrub.value) >= last ? 0 : Number(scrub.value), begin = performance.now();
    play.textContent = "Pause";
    play.setAttribute("aria-label", "Pause the film of rounds");
    const step = (now) => {
      const passed = from + Math.max(0, now - begin) / (1000 * ROUND_SECONDS);
      const value = Math.min(last, still.matches ? Math.floor(passed) : passed);
      scrub.value = value;
      show(value);
      if (value < last) playing = requestAnimationFrame(step);
      else stop();
    };
    playing = requestAnimationFrame(step);
  }

  play.addEventListener("click", () => (playing ? stop() : start()));
  scrub.addEventListener("input", () => { stop(); show(Number(scrub.value)); });
  play.hidden = scrub.hidden = last === 0;
  show(0);
}
