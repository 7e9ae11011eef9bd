"""Find, hover and press elements of a page in a real browser, and measure its contrast."""

from __future__ import annotations

# The contrast ratio of WCAG 2 for every element that holds text of its own.
CONTRAST = """
const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
const channels = (colour) => {
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((c) => c / 255);
};
const linear = (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
const luminance = (colour) => channels(colour).map(linear)
  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const ground = (element) => {
  const colour = getComputedStyle(element).backgroundColor;
  return /, 0\\)$/.test(colour) ? ground(element.parentElement) : colour;
};
const hasText = (element) => element.getClientRects().length
  && [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
return [...document.querySelectorAll("main *, header *, footer *")].filter(hasText).map((e) => {
  const style = getComputedStyle(e);
  const text = luminance(e.namespaceURI.endsWith("svg") ? style.fill : style.color);
  const behind = luminance(ground(e));
  const ratio = (Math.max(text, behind) + 0.05) / (Math.min(text, behind) + 0.05);
  return [ratio, e.textContent.slice(0, 40)];
}).filter(([ratio]) => ratio < 4.5);
"""


def find_element(browser, selector):
    return browser.find_element("css selector", selector)


def find_elements(browser, selector):
    return browser.find_elements("css selector", selector)


def hover(browser, element):
    from selenium.webdriver import ActionChains

    browser.execute_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element
    )
    ActionChains(browser).move_to_element(element).perform()
    # The page answers in the next frame, which a busy machine draws late.
    browser.execute_async_script(
        "const done = arguments[0];"
        "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 20)))"
    )


def press(browser, element):
    browser.execute_script(
        "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element
    )
    element.click()
