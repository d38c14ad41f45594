// Puts one of several prepared pictures on the page: native controls, no dependencies.
// Everything comes from the model, so the picture survives a restarted kernel.

const SECONDS_A_FRAME = 1.0;

function make(name, properties = {}, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}

// Keys belong to the control that has the focus; JupyterLab would fold headings with arrows.
// It looks for this on the element itself.
function keepKeys(control) {
  control.dataset.lmSuppressShortcuts = "true";
  return control;
}

// A group names the layers it needs, and those that must be off: a line between two points that
// are shown leaves out the points between them.
function showLayers(picture, hidden) {
  for (const group of picture.querySelectorAll("[data-layers]")) {
    const named = (key) => (group.dataset[key] || "").split(" ").filter(Boolean);
    const shown =
      named("layers").every((layer) => !hidden.includes(layer)) &&
      named("without").every((layer) => hidden.includes(layer));
    group.style.display = shown ? "" : "none";
  }
}

function render({ model, el }) {
  const frames = model.get("frames");
  const unit = model.get("unit");
  const last = frames.length - 1;
  const root = make("div", { className: "tpulab-player" });
  const controls = make("div", { className: "tpulab-player-controls" });
  const status = make("p");
  status.setAttribute("aria-live", "polite");
  const picture = make("div", { className: "tpulab-player-picture" });
  picture.innerHTML = model.get("scene");
  const slot = picture.querySelector("[data-frame]");
  root.append(controls, status, picture);
  if (model.get("note")) root.append(make("p", { textContent: model.get("note") }));
  el.appendChild(root);

  let slider = null, back = null, forth = null, play = null, list = null, timer = null;
  const stop = () => {
    clearInterval(timer);
    timer = null;
    if (play) play.textContent = "▶ play";
  };
  const current = () => Math.min(Math.max(model.get("step"), 0), last);
  const go = (step) => {
    model.set("step", Math.min(Math.max(step, 0), last));
    model.save_changes();
    draw();
  };

  if (model.get("control") === "slider") {
    slider = keepKeys(make("input", { type: "range", min: 0, max: last, step: 1 }));
    back = keepKeys(make("button", { type: "button", textContent: "◀ step back" }));
    forth = keepKeys(make("button", { type: "button", textContent: "step on ▶" }));
    controls.append(make("label", {}, `${unit} `, slider), back, forth);
    slider.addEventListener("input", () => { stop(); go(Number(slider.value)); });
    // arrow keys go on where a click began: the slider takes them after a press of the mouse, and the
    // buttons themselves for those who came by the keyboard
    for (const [button, by] of [[back, -1], [forth, 1]]) {
      button.addEventListener("click", (event) => {
        stop();
        go(current() + by);
        if (event.detail > 0 || button.disabled) slider.focus();
      });
    }
    controls.addEventListener("keydown", (event) => {
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!by || event.target.localName !== "button") return;
      event.preventDefault();
      event.stopPropagation();
      stop();
      go(current() + by);
      if (event.target.disabled) slider.focus();
    });
    // whoever asked for less motion steps by hand
    if (!window.matchMedia("(prefers-reduced-motion: reduce)").matches && last > 1) {
      play = keepKeys(make("button", { type: "button", textContent: "▶ play" }));
      controls.append(play);
      play.addEventListener("click", () => {
        if (timer !== null) return stop();
        if (current() === last) go(0);
        play.textContent = "❚❚ pause";
        timer = setInterval(() => {
          if (!root.isConnected || current() >= last) return stop();
          go(current() + 1);
        }, 1000 * SECONDS_A_FRAME);
      });
    }
  } else {
    list = keepKeys(make("select"));
    frames.forEach((frame, index) => {
      list.append(make("option", { value: index, textContent: frame.label }));
    });
    controls.append(make("label", {}, `${unit} `, list));
    list.addEventListener("change", () => go(Number(list.value)));
  }

  const boxes = model.get("toggles").map(({ label, layer }) => {
    const box = keepKeys(make("input", { type: "checkbox" }));
    box.addEventListener("change", () => {
      const hidden = model.get("hidden").filter((other) => other !== layer);
      model.set("hidden", box.checked ? hidden : [...hidden, layer]);
      model.save_changes();
      draw();
    });
    return { box, layer, label };
  });
  if (boxes.length) {
    const group = make("fieldset", {}, make("legend", { textContent: "shown" }));
    for (const { box, label } of boxes) group.append(make("label", {}, box, ` ${label}`));
    controls.append(group);
  }

  function draw() {
    const step = current();
    const frame = frames[step];
    const hidden = model.get("hidden");
    if (slider) {
      slider.value = step;
      slider.setAttribute("aria-valuetext", frame.text);
      back.disabled = step === 0;
      forth.disabled = step === last;
    } else {
      list.value = step;
    }
    if (slot) slot.innerHTML = frame.svg;
    else picture.innerHTML = frame.svg;
    const svg = picture.querySelector("svg");
    if (svg) svg.setAttribute("aria-label", frame.text);
    for (const { box, layer } of boxes) box.checked = !hidden.includes(layer);
    showLayers(picture, hidden);
    if (status.textContent !== frame.text) status.textContent = frame.text;
  }

  model.on("change:step", draw);
  model.on("change:hidden", draw);
  draw();
  return () => {
    stop();
    model.off("change:step", draw);
    model.off("change:hidden", draw);
  };
}

export default { render };
