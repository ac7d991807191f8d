// Puts an interactive chart in the place of each still picture; the picture stays for print, and where this fails.
for (const box of document.querySelectorAll("[data-spec]")) {
  const spec = JSON.parse(document.getElementById(box.dataset.spec).textContent);
  // ast: expressions are interpreted, because the page's policy forbids evaluating text as code.
  vegaEmbed(box.querySelector(".live"), spec, { mode: "vega-lite", renderer: "svg", ast: true, actions: false, defaultStyle: false })
    .then(() => { box.dataset.state = "live"; })
    .catch((error) => { box.dataset.state = "still"; console.error(error); });
}
