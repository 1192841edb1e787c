from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from satrap.data.dataset import open_source
from satrap.tools.init.kinds import decide
from satrap.tools.init.names import names_user, words
from satrap.tools.init.profile import profile

IDS = """
    user_id userId USER_ID userid uid id user item product customer device session campaign item_id itemId iid
    product_key product_code product_sku sku isbn asin zip zipcode postal_code store_nr house_no device_type
    user_id_x merchant_id id_of_user price_id order_id visitorid seller_id shop_id user_hash
    creative_id ad_id campaign_key session_uuid user_city product_category item_brand store_region
    user_gender device_os app_id user_device category_code_1 airline_code customer_segment
"""
"""Names of columns whose whole numbers are names."""

MEASURES = """
    user_age item_price_cents user_orders_30d product_views age n_reviews user_views_7d views_7d_user
    user-item_affinity_0 customer_tenure_days customer_lifetime_value product_rating_count item_ctr_rank
    session_length session_duration_ms session_pages device_screen_width shop_score seller_rating
    store_distance_m item_stock campaign_budget campaign_spend_usd visitor_visits member_since_days
    user_num_clicks num_user_ids n_ids user_id_count zip_count price_per_sku orders_by_zip lines_of_code
    no_of_items nr_of_orders number_of_customers numProducts totalUserOrders productViews USER_AGE
    item_weight_grams user_followers item_age_hours store_sales last_30d_user_purchases user_7d_active
    avg_item_price max_user_score userAge product_discount_pct position quantity hours_per_week
    education_num duration balance unique_ids total_user_ids code_count
"""
"""Names of columns whose whole numbers are amounts."""


@pytest.fixture(scope="module")
def kinds() -> dict[str, str]:
    """What each column of a table of whole numbers is decided to be."""
    random = np.random.default_rng(5)
    columns = {name: random.integers(0, 300, 3000) for name in (IDS + MEASURES).split()}
    found = profile(open_source(pa.table({"y": np.zeros(3000), **columns})), "y")
    return {name: decide(found.columns[name], found.sample.column(name).chunk(0)).kind for name in columns}


def test_names_of_ids(kinds: dict[str, str]) -> None:
    assert [name for name in IDS.split() if kinds[name] != "category"] == []


def test_names_of_measures(kinds: dict[str, str]) -> None:
    assert [name for name in MEASURES.split() if kinds[name] != "number"] == []


def test_a_measure_with_a_value_of_its_own_in_almost_every_row_is_used() -> None:
    random = np.random.default_rng(6)
    values = random.permutation(5000)
    large = 2**31 + random.permutation(5000)
    table = {"y": np.zeros(5000), "item_price_cents": values, "order_id": values, "revenue_micros": large}
    found = profile(open_source(pa.table({**table, "token": large})), "y")
    kinds = {
        name: decide(column, found.sample.column(name).chunk(0)).kind
        for name, column in found.columns.items()
    }
    assert kinds["item_price_cents"] == kinds["revenue_micros"] == "number"
    assert kinds["order_id"] == kinds["token"] == "unused"


def test_words() -> None:
    assert words("userId") == ["user", "id"]
    assert words("User-ID") == words("user_id") == words("USER_ID") == ["user", "id"]
    assert words("HTMLPage2") == ["html", "page", "2"]


def test_names_of_users() -> None:
    named = "user user_id userId userid UID customer visitor_id member_key reader client_id id_user"
    assert [name for name in named.split() if not names_user(name)] == []
    others = "user_city customer_segment user_age user_zip client_os item_id users_seen guid_of_item"
    assert [name for name in others.split() if names_user(name)] == []
