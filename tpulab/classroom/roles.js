// Who drives, how long still, and a button to hand over. The kernel holds the state; a press is a
// wish that the kernel grants, so that all screens agree.

const KERNEL_BUSY_AFTER_MS = 1500;

function clock(seconds) {
  const minutes = Math.floor(seconds / 60);
  return `${minutes}:${String(Math.floor(seconds % 60)).padStart(2, "0")}`;
}

function render({ model, el }) {
  const root = document.createElement("div");
  root.className = "tpulab-turns";
  const roles = document.createElement("p");
  roles.setAttribute("role", "status");
  const left = document.createElement("p");
  const button = document.createElement("button");
  button.dataset.lmSuppressShortcuts = "true";
  const note = document.createElement("span");
  note.setAttribute("aria-live", "polite");
  root.append(roles, left, button, note);
  el.appendChild(root);
  let patience = null;
  let over = null;

  function tick() {
    const seconds = model.get("until") - Date.now() / 1000;
    const now = seconds <= 0;
    left.textContent = now
      ? `The ${model.get("minutes")} minutes are over: hand over.`
      : `${clock(seconds)} of ${model.get("minutes")} minutes left.`;
    root.classList.toggle("tpulab-turns-over", now);
    // said once, when it happens, and not every second
    if (now && over === false) note.textContent = " Time to hand over.";
    over = now;
  }

  function draw() {
    const names = model.get("names");
    const driver = model.get("driver");
    const next = names[(driver + 1) % names.length];
    const navigators = names.filter((_, number) => number !== driver);
    const strong = document.createElement("strong");
    strong.textContent = names[driver];
    const verb = navigators.length > 1 ? "navigate" : "navigates";
    roles.replaceChildren(strong, ` drives, ${navigators.join(" and ")} ${verb}.`);
    button.textContent = `Hand over to ${next}`;
    button.disabled = false;
    clearTimeout(patience);
    note.textContent = "";
    over = null;
    tick();
  }

  button.addEventListener("click", () => {
    button.disabled = true;
    model.send({ hand_over_from: model.get("driver") });
    patience = setTimeout(() => {
      note.textContent = " The kernel is busy; it hands over when its cell is done.";
      button.disabled = false;
    }, KERNEL_BUSY_AFTER_MS);
  });
  const redraw = () => draw();
  for (const name of ["names", "driver", "minutes", "until"]) model.on(`change:${name}`, redraw);
  const timer = setInterval(tick, 1000);
  draw();
  return () => {
    clearInterval(timer);
    clearTimeout(patience);
    for (const name of ["names", "driver", "minutes", "until"]) model.off(`change:${name}`, redraw);
  };
}

export default { render };
