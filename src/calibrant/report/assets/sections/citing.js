report.section("citing", (root) => {
  const text = root.querySelector("#bibtex");
  const status = root.querySelector("#copy-status");
  root.querySelector("#copy-bibtex").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text.textContent);
      status.textContent = "Copied";
    } catch {
      // Without leave to write the clipboard, the next best thing is to have it selected.
      getSelection().selectAllChildren(text);
      status.textContent = "Selected; press Ctrl+C or ⌘C";
    }
  });
});
