// Scrolls and zooms a prepared strip of bars and reads it at a cursor: native controls only.
// The bars were drawn in Python; this changes the part of them that is seen.

function make(name, properties = {}, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}

// Keys belong to the control that has the focus; JupyterLab looks for this on the element itself.
function keepKeys(control) {
  control.dataset.lmSuppressShortcuts = "true";
  return control;
}

function timeText(seconds) {
  if (seconds < 1e-12) return "0";
  for (const [size, unit] of [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]]) {
    if (seconds >= size || unit === "ns") {
      const value = seconds / size;
      return `${value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2)} ${unit}`;
    }
  }
}

function render({ model, el }) {
  const get = (name) => model.get(name);
  const starts = get("starts"), lanes = get("lanes"), names = get("names"), spans = get("spans");
  const end = get("end"), hertz = get("hertz"), scale = get("scale");
  const root = make("div", { className: "tpulab-scroller" });
  const controls = make("div", { className: "tpulab-player-controls" });
  const zoom = keepKeys(make("select"));
  for (const count of get("zooms")) {
    const steps = count === starts.length ? "all steps" : count === 1 ? "1 step" : `${count} steps`;
    zoom.append(make("option", { value: count, textContent: steps }));
  }
  const from = keepKeys(make("input", { type: "range", min: 1, max: starts.length, step: 1 }));
  const cursor = keepKeys(make("input", { type: "range", min: 0, max: 1, step: 0.005 }));
  controls.append(
    make("label", {}, "show ", zoom),
    make("label", {}, "from grid step ", from),
    make("label", {}, "cursor ", cursor)
  );
  const status = make("p");
  status.setAttribute("aria-live", "polite");
  const picture = make("div", { className: "tpulab-player-picture" });
  picture.innerHTML = get("picture");
  root.append(controls, status, picture);
  if (get("note")) root.append(make("p", { textContent: get("note") }));
  el.appendChild(root);
  const strip = picture.querySelector("[data-strip]");
  const line = picture.querySelector("[data-cursor]");
  const ticks = [...picture.querySelectorAll("[data-tick] text")];
  const left = Number(strip.getAttribute("x")), width = Number(strip.getAttribute("width"));
  const height = strip.getAttribute("viewBox").split(" ")[3];

  // What is going on at a time: copies by name, units by the grid step they work on.
  function reading(time) {
    const copies = [], waits = new Set(), steps = new Map(), busy = new Set();
    for (const [lane, first, after, step, name] of spans) {
      if (time < first || time >= after) continue;
      busy.add(lane);
      const what = lanes[lane];
      if (what === "core waits") waits.add(names[name]);
      else if (what.startsWith("copies")) {
        copies.push(`${what.slice(7)} ${names[name].replace(/^(input|output) /, "")} of step ${step + 1}`);
      } else steps.set(step, [...(steps.get(step) || []), what]);
    }
    const parts = [];
    for (const [step, units] of steps) {
      parts.push(`${[...new Set(units)].join(", ")} on step ${step + 1}`);
    }
    if (copies.length) parts.push(`copying ${[...new Set(copies)].join(", ")}`);
    if (waits.size) parts.push(`the core is ${[...waits].join(", ")}`);
    const idle = lanes.filter((what, lane) => !busy.has(lane) && what !== "core waits");
    const rest = idle.length ? ` Idle: ${idle.join(", ")}.` : "";
    return `At ${timeText(time / hertz)}: ${parts.join("; ") || "nothing works"}.${rest}`;
  }

  function draw() {
    const count = get("zoom"), all = count === starts.length;
    const span = all ? end : (end / starts.length) * count;
    const first = all ? 0 : Math.min(starts[get("start")], Math.max(end - span, 0));
    zoom.value = count;
    from.value = get("start") + 1;
    from.disabled = all;
    cursor.value = get("cursor");
    strip.setAttribute("viewBox", `${first * scale} 0 ${span * scale} ${height}`);
    ticks.forEach((tick, quarter) => {
      tick.textContent = timeText((first + (span * quarter) / 4) / hertz);
    });
    const x = left + width * get("cursor");
    line.setAttribute("x1", x);
    line.setAttribute("x2", x);
    const text = reading(first + span * get("cursor"));
    cursor.setAttribute("aria-valuetext", text);
    if (status.textContent !== text) status.textContent = text;
  }

  const put = (name, value) => {
    model.set(name, value);
    model.save_changes();
    draw();
  };
  zoom.addEventListener("change", () => put("zoom", Number(zoom.value)));
  from.addEventListener("input", () => put("start", Number(from.value) - 1));
  cursor.addEventListener("input", () => put("cursor", Number(cursor.value)));
  const changes = ["change:start", "change:zoom", "change:cursor"];
  for (const change of changes) model.on(change, draw);
  draw();
  return () => {
    for (const change of changes) model.off(change, draw);
  };
}

export default { render };
