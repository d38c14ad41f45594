// Walks through a kernel's grid: one panel an operand, native controls, no dependencies.
// The picture is drawn from the model's data alone, so it survives a restarted kernel.

const SVG = "http://www.w3.org/2000/svg";
const COLOUR = { input: "#56B4E9", output: "#E69F00" };
const SIDE = 150;

function element(parent, name, attributes = {}, text = null) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== null) node.textContent = text;
  parent.appendChild(node);
  return node;
}

function movement(operand, moves) {
  if (operand.role === "input") return moves ? "fetched" : "kept in VMEM";
  return moves ? "written back" : "stays in VMEM";
}

function panel(operand, step) {
  const [rows, columns] = operand.shape;
  const scale = SIDE / Math.max(rows, columns);
  const width = Math.max(columns * scale, 14);
  const height = Math.max(rows * scale, 14);
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("width", SIDE + 24);
  svg.setAttribute("height", height + 4);
  svg.setAttribute("role", "img");
  const [row, column] = operand.corners[step];
  const moves = operand.moving[step];
  const label =
    `${operand.name}: block at row ${row}, column ${column}, ${movement(operand, moves)}`;
  svg.setAttribute("aria-label", label);
  element(svg, "rect", { x: 1, y: 1, width, height, fill: "none", stroke: "currentColor" });
  const left = (width * Math.min(column, columns)) / columns;
  const top = (height * Math.min(row, rows)) / rows;
  const right = (width * Math.min(column + operand.block[1], columns)) / columns;
  const bottom = (height * Math.min(row + operand.block[0], rows)) / rows;
  element(svg, "rect", {
    x: 1 + left,
    y: 1 + top,
    width: right - left,
    height: bottom - top,
    fill: COLOUR[operand.role],
    "fill-opacity": moves ? 1 : 0.35,
    stroke: "currentColor",
    "stroke-dasharray": moves ? "none" : "4 3",
  });
  if (moves) {
    const arrow = operand.role === "input" ? "↓" : "↑";
    element(svg, "text", { x: width + 6, y: 16, fill: "currentColor", "font-size": 16 }, arrow);
  }
  return svg;
}

function render({ model, el }) {
  const data = model.get("data");
  const last = data.coordinates.length - 1;
  const root = document.createElement("div");
  root.className = "tpulab-stepping";
  const controls = document.createElement("div");
  const label = document.createElement("label");
  const slider = document.createElement("input");
  Object.assign(slider, { type: "range", min: 0, max: last, step: 1 });
  label.append("grid step ", slider);
  const back = document.createElement("button");
  const forth = document.createElement("button");
  back.textContent = "◀ step back";
  forth.textContent = "step on ▶";
  for (const control of [slider, back, forth]) {
    // keys belong to the control that has the focus; JupyterLab would fold headings with arrows.
    // It looks for this on the element itself.
    control.dataset.lmSuppressShortcuts = "true";
  }
  controls.append(label, back, forth);
  const status = document.createElement("p");
  status.setAttribute("aria-live", "polite");
  const panels = document.createElement("div");
  panels.className = "tpulab-stepping-panels";
  root.append(controls, status, panels);
  el.appendChild(root);

  function draw() {
    const step = Math.min(Math.max(model.get("step"), 0), last);
    slider.value = step;
    back.disabled = step === 0;
    forth.disabled = step === last;
    const coordinates = data.coordinates[step];
    const place = coordinates.length ? ` at (${coordinates.join(", ")})` : "";
    const moving = data.operands
      .map((operand) => `${operand.name} ${movement(operand, operand.moving[step])}`)
      .join(", ");
    status.textContent = `Step ${step + 1} of ${data.steps}${place}: ${moving}.`;
    panels.replaceChildren(
      ...data.operands.map((operand) => {
        const box = document.createElement("div");
        const title = document.createElement("div");
        title.textContent = `${operand.name} (${operand.role})`;
        const state = document.createElement("div");
        state.textContent = movement(operand, operand.moving[step]);
        box.append(title, panel(operand, step), state);
        return box;
      })
    );
  }

  function go(step) {
    model.set("step", step);
    model.save_changes();
    draw();
  }

  slider.addEventListener("input", () => go(Number(slider.value)));
  back.addEventListener("click", () => go(model.get("step") - 1));
  forth.addEventListener("click", () => go(model.get("step") + 1));
  model.on("change:step", draw);
  draw();
  return () => model.off("change:step", draw);
}

export default { render };
