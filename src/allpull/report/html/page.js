// Puts an interactive chart in the place of each still picture; the picture stays for print, and where this fails.
// A chart is drawn anew when its width changes: the lines of its legend depend on it.
async function draw(box, live, width) {
  const spec = JSON.parse(document.getElementById(box.dataset.spec).textContent);
  spec.width = width;
  spec.config.legend.columns = Math.max(1, Math.floor((width - spec.usermeta.axis_px) / spec.usermeta.key_px));
  // ast: expressions are interpreted, because the page's policy forbids evaluating text as code.
  const options = { mode: "vega-lite", renderer: "svg", ast: true, actions: false, defaultStyle: false };
  return vegaEmbed(live, spec, options);
}

// Sets the parameter of a slider in those charts that have it.
function move(slider, boxes) {
  const name = slider.dataset.param;
  const place = slider.querySelector("input").valueAsNumber;
  for (const { view } of boxes) {
    if (view && name in view.getState({ signals: (one) => one === name, data: () => false }).signals)
      view.signal(name, place).runAsync();
  }
}

for (const box of document.querySelectorAll("[data-spec]")) {
  const live = box.querySelector(".live");
  let drawn = 0;
  let last = Promise.resolve(null);
  const redraw = () => {
    const width = live.clientWidth;
    if (width === 0 || width === drawn) return; // 0: hidden while printing
    drawn = width;
    last = last
      .then((before) => {
        before?.finalize();
        return draw(box, live, width);
      })
      .then((result) => {
        box.dataset.state = "live";
        box.view = result.view;
        for (const slider of box.closest("section").querySelectorAll(".slider")) move(slider, [box]);
        return result;
      })
      .catch((error) => {
        box.dataset.state = "still";
        live.replaceChildren();
        console.error(error);
        return null;
      });
  };
  new ResizeObserver(redraw).observe(live);
  if ("zoomable" in box.dataset) {
    const button = box.parentElement.insertBefore(document.createElement("button"), box);
    button.type = "button";
    button.className = "reset";
    button.textContent = "Reset zoom";
    button.addEventListener("click", () => {
      drawn = 0;
      redraw();
    });
  }
}

// Copies without asking for a permission where the clipboard is closed to pages, as that of some browsers is to files.
async function copy(code) {
  try {
    await navigator.clipboard.writeText(code.textContent);
  } catch {
    getSelection().selectAllChildren(code);
    if (!document.execCommand("copy")) throw new Error("the browser does not let this page copy");
    getSelection().removeAllRanges();
  }
}

for (const command of document.querySelectorAll(".command")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    try {
      await copy(command.querySelector("code"));
      button.textContent = "Copied";
    } catch {
      button.textContent = "Press Ctrl+C"; // the text is still selected
    }
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  command.append(button);
}

// A table that is wider than the screen says so, until its end is in sight.
for (const scroll of document.querySelectorAll(".scroll")) {
  const tell = () => {
    const hidden = scroll.scrollWidth - scroll.clientWidth - scroll.scrollLeft;
    scroll.parentElement.toggleAttribute("data-more", hidden > 2);
  };
  scroll.addEventListener("scroll", tell, { passive: true });
  new ResizeObserver(tell).observe(scroll);
}

// A slider plays only when told to, and not at all for those who want no motion.
for (const slider of document.querySelectorAll(".slider")) {
  const texts = JSON.parse(slider.dataset.texts);
  const [input, output, button] = ["input", "output", "button"].map((tag) => slider.querySelector(tag));
  const last = texts.length - 1;
  let timer = null;
  const show = (place) => {
    input.value = place;
    output.textContent = texts[place];
    input.setAttribute("aria-valuetext", texts[place]);
    move(slider, slider.closest("section").querySelectorAll("[data-spec]"));
  };
  const stop = () => {
    clearInterval(timer);
    timer = null;
    button.textContent = "Play";
  };
  const play = () => {
    const stride = Math.max(1, Math.ceil(last / 100));
    if (input.valueAsNumber === last) show(0);
    button.textContent = "Pause";
    timer = setInterval(() => {
      show(Math.min(last, input.valueAsNumber + stride));
      if (input.valueAsNumber === last) stop();
    }, Math.max(80, Math.min(1000, 6000 / last)));
  };
  input.addEventListener("input", () => {
    stop();
    show(input.valueAsNumber);
  });
  button.addEventListener("click", () => (timer === null ? play() : stop()));
  button.hidden = matchMedia("(prefers-reduced-motion: reduce)").matches;
  show(last);
}

// What follows a guess shows once every question has an answer and the reader asks for it.
for (const guess of document.querySelectorAll(".guess")) {
  const questions = [...guess.querySelectorAll("fieldset")];
  const button = guess.querySelector("button");
  const chosen = (question) => question.querySelector("input:checked");
  guess.addEventListener("change", () => (button.disabled = !questions.every(chosen)));
  guess.addEventListener("submit", (event) => {
    event.preventDefault();
    for (const question of questions) {
      question.querySelector("output").textContent = JSON.parse(question.dataset.answers)[chosen(question).value];
      for (const input of question.querySelectorAll("input")) input.disabled = true;
    }
    button.hidden = true;
    guess.dataset.state = "open";
  });
  guess.reset(); // a reload keeps no answers
}
